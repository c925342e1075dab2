import pytest

from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.errors import ConfigError
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec, WriteMode
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.kvstore.conftest import BLOCK_BYTES, Rig


@pytest.mark.parametrize("write_mode", [WriteMode.BACK, WriteMode.SECOND_USE])
def test_only_a_tier_below_memory_can_be_written_later(rig: Rig, write_mode: WriteMode) -> None:
    with pytest.raises(ConfigError, match="disk_write: must be through for a tier that is not below"):
        rig.open(host_blocks=0, write_mode=write_mode)
    arena = Arena(BLOCK_BYTES)
    config = TierConfig("host", BLOCK_BYTES, write_mode)
    host = TierSpec(config, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)
    with pytest.raises(ConfigError, match="host_write: must be through"):
        TieredStore([host], arena)
