"""Rules for prefixes, from what an operator writes to the keys of a model's blocks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from engine_adapter.assemble import assemble_around
from engine_adapter.engine.models import LoadedModel
from engine_adapter.retaining import PrefixRule, RetentionPlan, without_absent
from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.keys import chain_keys
from kvstore.namespace import salt_digest
from kvstore.retention import Lifetime, Retention, TenantRule
from tests.engine_adapter.rig import BLOCK_TOKENS, MakeRig, greedy, prompt_of
from tests.engine_adapter.test_cases_restart import config_of

DAY = Lifetime(hard_ttl_s=86_400.0)
TOKENS = tuple(prompt_of(3 * BLOCK_TOKENS + 5, 1))


def plan(**facts: object) -> RetentionPlan:
    return RetentionPlan(prefixes=(PrefixRule("prefixes.0", DAY, **facts),))  # type: ignore[arg-type]


def test_a_prefix_is_named_by_its_last_whole_block(
    tiny_model: LoadedModel, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    namespace = tiny_model.namespace.with_salt("acme")
    keys = chain_keys(namespace.digest, TOKENS, BLOCK_TOKENS)
    retention = plan(token_ids=TOKENS, tenant=salt_digest("acme")).resolved(tiny_model, tiny_tokenizer)
    assert retention.prefixes == {keys[2]: DAY}


def test_a_text_is_read_as_the_model_reads_it(
    tiny_model: LoadedModel, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    text = "You are the help desk of a company that makes bicycles."
    tokens = tiny_tokenizer.encode(text, add_special_tokens=False)
    keys = chain_keys(tiny_model.namespace.digest, tokens, BLOCK_TOKENS)
    assert plan(text=text).resolved(tiny_model, tiny_tokenizer).prefixes == {keys[-1]: DAY}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"token_ids": TOKENS[:7]}, "prefixes.0: has 7 tokens, which is less than one block of 8"),
        ({"text": "a"}, "tokens, which is less than one block"),
        ({"token_ids": (10**9,) * 8}, "prefixes.0.token_ids: must be below"),
        ({"token_ids": TOKENS, "lora": "none"}, "prefixes.0.lora: no adapter that is served is called none"),
    ],
)
def test_a_prefix_that_no_prompt_can_have_is_refused(
    tiny_model: LoadedModel, tiny_tokenizer: PreTrainedTokenizerFast, facts: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(**facts).resolved(tiny_model, tiny_tokenizer)
    assert told in str(caught.value)


def test_two_rules_for_one_prefix_are_refused(
    tiny_model: LoadedModel, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    rules = tuple(PrefixRule(f"prefixes.{number}", DAY, token_ids=TOKENS) for number in range(2))
    with pytest.raises(ConfigError, match=r"prefixes.1: begins with the same blocks as one before"):
        RetentionPlan(prefixes=rules).resolved(tiny_model, tiny_tokenizer)


def test_quotas_of_tiers_that_are_not_there_are_left_aside() -> None:
    quotas = {"host": 1, "disk": 2}
    retention = Retention(TenantRule(quotas=quotas), {"a": TenantRule(quotas=quotas)}, {b"n": quotas})
    left = without_absent(retention, {"disk"})
    assert left.others.quotas == left.tenants["a"].quotas == left.namespaces[b"n"] == {"disk": 2}


def test_prompts_under_a_rule_end_and_others_do_not(make_rig: MakeRig) -> None:
    now_ms = 10**12
    rig = make_rig(clock=Clock(wall_ms=lambda: now_ms))
    rule = PrefixRule("prefixes.0", Lifetime(hard_ttl_s=60.0), token_ids=TOKENS)
    rig.store.set_retention(RetentionPlan(prefixes=(rule,)).resolved(rig.model, None))
    under, other = [*TOKENS, *prompt_of(20, 2)], [*TOKENS[: 2 * BLOCK_TOKENS], *prompt_of(20, 3)]
    for prompt in (under, other):
        rig.engine.generate(greedy(prompt))
    assert rig.engine.flush(10)
    now_ms += 60_000
    assert rig.engine.generate(greedy(under)).usage.cached_tokens == 0
    now_ms += 59_000
    assert rig.engine.generate(greedy(other)).usage.cached_tokens > 2 * BLOCK_TOKENS, (
        "what follows is not under it"
    )


def test_a_server_is_assembled_with_its_rules_and_the_defaults_of_its_tiers(
    tmp_path: Path, tiny_model: LoadedModel, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    rule = TenantRule(Lifetime(5.0), {"disk": 1 << 20, "redis": 1 << 20})
    rules = RetentionPlan(rule, prefixes=(PrefixRule("prefixes.0", DAY, token_ids=TOKENS),))
    ttls_s = {"host": 60.0, "disk": None, "redis": 7.0}
    config = config_of(tmp_path, retention=rules, tier_ttls_s=ttls_s)
    with closing(assemble_around(tiny_model, tiny_tokenizer, config)) as serving:
        assert serving.store.config.tier_ttls_s == {"host": 60.0, "disk": None}, "there is no Redis tier"
        retention = serving.store.config.retention
        assert retention.others.quotas == {"disk": 1 << 20}
        assert len(retention.prefixes) == 1
