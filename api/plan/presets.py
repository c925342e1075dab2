"""Devices and links by name. Where each number comes from is written beside it, and in docs/planning.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policies.cost_model import LoadCost

UTILISATION = 0.43
"""What prefill gets of a device's peak: 20,000 tokens of Llama-3.1-8B in 0.9 s on one H100, reported in
https://github.com/ai-dynamo/dynamo/issues/6101; Llama 3 was trained at 0.38 to 0.43 of it
(https://arxiv.org/abs/2407.21783, table 4)."""

_TCP_SHARE = 1448 / 1538  # payload of a full Ethernet frame of 1,500 bytes, by what it takes on the wire
_DATACENTRE_S = 0.5e-3  # a round trip within a data centre


@dataclass(frozen=True, slots=True)
class Device:
    """A device's peak in 16 bits, dense, and the rate at which it reads its own memory."""

    name: str
    peak_flops: float
    memory_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """What connects a tier to the device: the latency of a load and the rate at which bytes arrive."""

    name: str
    what: str
    cost: LoadCost


def _network(gigabits: int) -> Link:
    cost = LoadCost(_DATACENTRE_S, gigabits / 8 * 1e9 * _TCP_SHARE)
    return Link(f"net-{gigabits}g", f"{gigabits} Gb/s network", cost)


_DEVICES = (
    # https://www.nvidia.com/en-us/data-center/h100/ and h200/, SXM
    Device("H100", 989.4e12, 3.35e12),
    Device("H200", 989.4e12, 4.8e12),
)

_LINKS = (
    # 32 GT/s on 16 lanes are 63 GB/s one way, of which packet headers leave 55 to 58.
    Link("host", "host memory over PCIe 5 x16", LoadCost(20e-6, 55e9)),
    # A Samsung PM9A3 (U.2) reads 6.5 GB/s by its data sheet; one read from flash takes some 0.1 ms.
    Link("nvme", "NVMe over PCIe 4 x4", LoadCost(100e-6, 6.5e9)),
    _network(10),
    _network(25),
    _network(100),
    _network(200),
    # Measured: 64 blocks of 1 MiB in one exchange, loopback, two cores of a shared server CPU.
    Link("redis", "Valkey over TCP", LoadCost(100e-6, 1.9e9)),
)

DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _DEVICES})
LINKS: Mapping[str, Link] = MappingProxyType({link.name: link for link in _LINKS})
DEFAULT_LINKS = ("host", "nvme", "net-100g", "net-25g")
"""Those that are shown when none is named."""
