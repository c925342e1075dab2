"""The routes that ask the store, and tell it what is not about one block's bytes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api.store.context import Client, Shared, Writer
from api.store.schema import (
    ClearFields,
    FlushFields,
    InquiryFields,
    KeysFields,
    NamespaceFields,
    PinFields,
    PoolFields,
    UnpinFields,
    key_bytes,
)  # fmt: skip
from api.store.waiting import ended
from api.tenancy import Operator
from kvstore.absences import Absence
from kvstore.errors import RequestError
from kvstore.interface import Asked
from kvstore.loading import OnDone
from kvstore.namespace import Namespace
from kvstore.remote import pinning
from kvstore.remote.patience import patience_s
from kvstore.remote.reports import health_report, statistics_report

_LONGEST_S = 60.0

router = APIRouter(prefix="/store", tags=["store"])


@router.get("")
async def describe(context: Shared, _: Client) -> dict[str, Any]:
    """Tell the tiers from the fastest, how long leases last, and whether media have to be asked."""
    store = context.store
    return {"tiers": store.tier_names, "lease_s": store.config.lease_s, "asks_media": store.asks_media}


@router.post("/namespaces")
async def register(context: Shared, client: Client, fields: NamespaceFields) -> dict[str, str]:
    """Describe a namespace by its manifest; returns the manifest of the one that is used for it."""
    try:
        namespace = Namespace.from_manifest(fields.manifest)
    except ValueError as error:
        raise RequestError("manifest", str(error)) from error
    own = await context.threads.run(lambda: client.register(namespace))
    return {"value": own.manifest()}


@router.get("/known_namespaces")
async def known_namespaces(
    context: Shared, client: Client, timeout_s: Annotated[float, Query(gt=0, le=_LONGEST_S)] = 5.0
) -> dict[str, list[str]]:
    """List the manifests of the namespaces that are known here, the caller's own."""
    known = await context.waits.run(lambda: context.store.known_namespaces(timeout_s))
    return {"value": [namespace.manifest() for namespace in known if client.may_know(namespace)]}


@router.get("/health")
async def health(context: Shared, _: Client) -> dict[str, Any]:
    """Tell the state of each tier, and the worst of them."""
    return {"value": health_report(context.store.health())}


@router.get("/statistics")
async def statistics(context: Shared, client: Client) -> dict[str, Any]:
    """Tell what each tier holds and has counted."""
    return {"value": statistics_report(context.store.statistics(), client.tenant)}


@router.post("/peek")
async def peek(context: Shared, client: Client, fields: KeysFields) -> dict[str, Any]:
    """Tell each block's fastest tier; nothing is leased."""
    return {"value": await context.threads.run(lambda: context.store.peek(client.own(_keys(fields))))}


@router.post("/why_absent")
async def why_absent(context: Shared, client: Client, fields: KeysFields) -> dict[str, Any]:
    """Tell what became of blocks that a lookup does not find: cause, tier, and when (epoch ms)."""

    def ask() -> list[Absence]:
        return [context.store.why_absent(key) for key in client.own(_keys(fields))]

    told = await context.threads.run(ask)
    return {"value": [(one.cause.value, one.tier, one.at_ms) for one in told]}


@router.post("/inquiries")
async def inquire(context: Shared, client: Client, fields: InquiryFields) -> dict[str, bool]:
    """Have shared media asked for blocks, and wait for their answers; says whether all came in time."""
    store, ends_s = context.store, context.store.now_s() + patience_s(fields.timeout_s)

    def begin(done: OnDone) -> Asked | None:
        return store.inquire(client.own(_keys(fields)), ends_s, done, fields.block_bytes)

    begun = await ended(begin, fields.timeout_s, context.threads)
    return {"value": begun is not None or not store.asks_media}


@router.post("/evict")
async def evict(context: Shared, client: Writer, fields: KeysFields) -> dict[str, int]:
    """Remove blocks from every tier, but for those in use; returns how many went."""
    return {"value": await context.waits.run(lambda: context.store.evict(client.own(_keys(fields))))}


@router.post("/quarantine")
async def quarantine(context: Shared, client: Writer, fields: KeysFields) -> dict[str, bool]:
    """Remove wrong blocks, and what was computed on them, and keep them out."""

    def quarantine_all() -> bool:
        for key in client.own(_keys(fields)):
            context.store.quarantine(key)
        return True

    return {"value": await context.waits.run(quarantine_all)}


@router.post("/flush")
async def flush(context: Shared, _: Client, fields: FlushFields) -> dict[str, bool]:
    """Wait until what was stored has reached the lower tiers; says whether it has."""
    return {"value": await context.waits.run(lambda: context.store.flush(fields.timeout_s))}


@router.post("/clear")
async def clear(context: Shared, _: Operator, fields: ClearFields) -> dict[str, int]:
    """Remove all blocks, but for those in use, from a tier or from all; returns how many went."""
    return {"value": await context.waits.run(lambda: context.store.clear(fields.tier))}


@router.post("/pin")
async def pin(context: Shared, client: Client, fields: PinFields) -> dict[str, Any]:
    """Keep a prefix for a time or until one; see what is pinned, or what bound it is ``beyond``."""
    keys = _keys(fields)
    return {
        "value": await context.waits.run(
            lambda: pinning.pin(client, keys, fields.for_s, fields.until_s, fields.tiers)
        )
    }


@router.post("/unpin")
async def unpin(context: Shared, client: Client, fields: UnpinFields) -> dict[str, int]:
    """Let a prefix be ordinary again; returns how many blocks were pinned, for each tier."""
    return {"value": await context.waits.run(lambda: pinning.unpin(client, _keys(fields), fields.tiers))}


@router.get("/pins")
async def pins(
    context: Shared, client: Client, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> dict[str, Any]:
    """List what the caller has pinned, by tenant, tier and end."""
    return {"value": await context.threads.run(lambda: pinning.pins(client, limit))}


@router.post("/pool")
async def pool(context: Shared, client: Client, fields: PoolFields) -> dict[str, Any]:
    """Tell what has changed in the engine's own pool; returns what it must let go of.

    An answer of another epoch than was sent means that nothing was taken in: tell all of it, with that epoch.
    """
    return {"value": await context.threads.run(lambda: client.pool.exchange(fields.model_dump()))}


def _keys(fields: KeysFields) -> list[bytes]:
    return [key_bytes(key) for key in fields.keys]
