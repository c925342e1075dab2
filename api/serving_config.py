"""From settings to what a server is assembled from."""

from __future__ import annotations

from api.folders import cost_folder
from api.retention_file import read_retention
from api.settings import Settings
from backends.redis_address import RedisAddress
from engine_adapter.serving_config import ServingConfig, SidecarConfig, TierSetup
from kvstore.errors import ConfigError
from kvstore.retention import Retention


def serving_config(settings: Settings, *, is_watched: bool = False) -> ServingConfig:
    """Return the configuration to assemble; only where it ``is_watched`` with shadows, recording, audit.

    Raises ``ConfigError`` when no model is named.
    """
    if settings.model is None:
        raise ConfigError("model", "none is named; give its folder with --model DIR or PREFIXD_MODEL")
    return ServingConfig(
        model=settings.model,
        weight_digests=settings.cache_path / "weight_digests.json",
        device=settings.device,
        compute_dtype=settings.compute_dtype,
        kv_dtype=settings.kv_dtype,
        block_tokens=settings.block_tokens,
        device_bytes=settings.device_bytes,
        device_eviction=settings.device_eviction,
        tiers=_tiers(settings),
        default_ttl_s=settings.default_ttl_s,
        tier_ttls_s=_tier_ttls_s(settings),
        retention=read_retention(settings.retention),
        reload_policy=settings.reload_policy,
        load_deadline_s=settings.load_deadline_s,
        mode=settings.mode,
        verify_share=settings.verify_share,
        cost_folder=cost_folder(settings.cache_path),
        max_batched_tokens=settings.max_batched_tokens,
        max_sequences=settings.max_sequences,
        max_waiting=settings.max_waiting,
        decode_graphs=settings.decode_graphs == "auto",
        loras=settings.lora,
        cpu_weights=settings.cpu_weights,
        shadow_policies=shadow_policies(settings.shadow_policies) if is_watched else (),
        record_trace=settings.record_trace if is_watched else None,
        record_trace_bytes=settings.record_trace_bytes,
        recheck_share=settings.recheck_share if is_watched else 0.0,
        recheck_memory_bytes=settings.recheck_memory_bytes,
    )


def sidecar_config(settings: Settings) -> SidecarConfig:
    """Return what a store without a model is made of. Raises ``ConfigError``."""
    return SidecarConfig(
        tiers=_tiers(settings),
        default_ttl_s=settings.default_ttl_s,
        tier_ttls_s=_tier_ttls_s(settings),
        socket=settings.socket or settings.cache_path / "store.sock",
        socket_mode=0o600 if settings.socket_access == "owner" else 0o660,
        retention=_rules_without_prefixes(settings),
    )


def _rules_without_prefixes(settings: Settings) -> Retention:
    plan = read_retention(settings.retention)
    if plan.prefixes:
        raise ConfigError("retention", "rules for prefixes need a model to read them; leave them out here")
    return Retention(plan.others, plan.tenants, plan.namespaces)


def redis_address(settings: Settings) -> RedisAddress | None:
    """Return where the Redis tier's server is; ``None``: no such tier. Raises ``ConfigError``."""
    if settings.redis_url is None or not settings.redis_bytes:
        return None
    password = settings.redis_password.get_secret_value() if settings.redis_password else None
    return RedisAddress.parse(
        settings.redis_url.get_secret_value(),
        username=settings.redis_username,
        password=password,
        ca_file=settings.redis_ca_file,
        cert_file=settings.redis_cert_file,
        key_file=settings.redis_key_file,
        timeout_s=settings.redis_timeout_s,
    )


def shadow_policies(text: str) -> tuple[str, ...]:
    """Return the policies that the setting names. Raises ``ConfigError`` for what is no list of them."""
    if text == "none":
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError("shadow_policies", f"{text!r} is not a list of names with commas between them")
    return tuple(dict.fromkeys(names))


def _tier_ttls_s(settings: Settings) -> dict[str, float | None]:
    own = {"host": settings.host_ttl_s, "disk": settings.disk_ttl_s, "redis": settings.redis_ttl_s}
    return {tier: ttl_s for tier, ttl_s in own.items() if ttl_s != "default"}


def _tiers(settings: Settings) -> tuple[TierSetup, ...]:
    host = TierSetup("host", settings.host_bytes, settings.host_eviction, "through")
    disk = TierSetup(
        "disk", settings.disk_bytes, settings.disk_eviction, settings.disk_write,
        settings.disk_path,
    )  # fmt: skip
    address = redis_address(settings)
    redis = TierSetup(
        "redis", settings.redis_bytes if address else 0, settings.redis_eviction, settings.redis_write,
        address=address, codec=settings.redis_codec,
    )  # fmt: skip
    return tuple(tier for tier in (host, disk, redis) if tier.budget_bytes)
