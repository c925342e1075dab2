"""The routes that ask the store, and tell it what is not about one block's bytes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.error_schema import errors
from api.store.answers import (
    Causes,
    Description,
    Health,
    Manifest,
    Manifests,
    Number,
    Pinned,
    Pinnings,
    PoolTold,
    Said,
    Statistics,
    Tiers,
)
from api.store.context import Client, Shared, Writer
from api.store.schema import (
    ClearFields,
    FlushFields,
    InquiryFields,
    KeysFields,
    NamespaceFields,
    PinWish,
    PoolFields,
    UnpinWish,
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

router = APIRouter(prefix="/store", tags=["store"], responses=errors(429))


@router.get("")
async def describe(context: Shared, _: Client) -> Description:
    """Tell the tiers from the fastest, how long leases last, and whether media have to be asked."""
    store = context.store
    return Description(
        tiers=list(store.tier_names), lease_s=store.config.lease_s, asks_media=store.asks_media
    )


@router.post("/namespaces")
async def register(context: Shared, client: Client, fields: NamespaceFields) -> Manifest:
    """Describe a namespace by its manifest; returns the manifest of the one that is used for it."""
    try:
        namespace = Namespace.from_manifest(fields.manifest)
    except ValueError as error:
        raise RequestError("manifest", str(error)) from error
    own = await context.threads.run(lambda: client.register(namespace))
    return Manifest(value=own.manifest())


@router.get("/known_namespaces")
async def known_namespaces(
    context: Shared, client: Client, timeout_s: Annotated[float, Query(gt=0, le=_LONGEST_S)] = 5.0
) -> Manifests:
    """List the manifests of the namespaces that are known here, the caller's own."""
    known = await context.waits.run(lambda: context.store.known_namespaces(timeout_s))
    return Manifests(value=[namespace.manifest() for namespace in known if client.may_know(namespace)])


@router.get("/health")
async def health(context: Shared, _: Client) -> Health:
    """Tell the state of each tier, and the worst of them."""
    return Health.model_validate({"value": health_report(context.store.health())})


@router.get("/statistics")
async def statistics(context: Shared, client: Client) -> Statistics:
    """Tell what each tier holds and has counted."""
    report = statistics_report(context.store.statistics(), client.tenant)
    return Statistics.model_validate({"value": report})


@router.post("/peek")
async def peek(context: Shared, client: Client, fields: KeysFields) -> Tiers:
    """Tell each block's fastest tier; nothing is leased."""
    tiers = await context.threads.run(lambda: context.store.peek(client.own(_keys(fields))))
    return Tiers(value=list(tiers))


@router.post("/why_absent")
async def why_absent(context: Shared, client: Client, fields: KeysFields) -> Causes:
    """Tell what became of blocks that a lookup does not find: cause, tier, and when (epoch ms)."""

    def ask() -> list[Absence]:
        return [context.store.why_absent(key) for key in client.own(_keys(fields))]

    told = await context.threads.run(ask)
    return Causes(value=[[one.cause.value, one.tier, one.at_ms] for one in told])


@router.post("/inquiries")
async def inquire(context: Shared, client: Client, fields: InquiryFields) -> Said:
    """Have shared media asked for blocks, and wait for their answers; says whether all came in time."""
    store, ends_s = context.store, context.store.now_s() + patience_s(fields.timeout_s)

    def begin(done: OnDone) -> Asked | None:
        return store.inquire(client.own(_keys(fields)), ends_s, done, fields.block_bytes)

    begun = await ended(begin, fields.timeout_s, context.threads)
    return Said(value=begun is not None or not store.asks_media)


@router.post("/evict", responses=errors(403))
async def evict(context: Shared, client: Writer, fields: KeysFields) -> Number:
    """Remove blocks from every tier, but for those in use; returns how many went."""
    return Number(value=await context.waits.run(lambda: context.store.evict(client.own(_keys(fields)))))


@router.post("/quarantine", responses=errors(403))
async def quarantine(context: Shared, client: Writer, fields: KeysFields) -> Said:
    """Remove wrong blocks, and what was computed on them, and keep them out."""

    def quarantine_all() -> bool:
        for key in client.own(_keys(fields)):
            context.store.quarantine(key)
        return True

    return Said(value=await context.waits.run(quarantine_all))


@router.post("/flush")
async def flush(context: Shared, _: Client, fields: FlushFields) -> Said:
    """Wait until what was stored has reached the lower tiers; says whether it has."""
    return Said(value=await context.waits.run(lambda: context.store.flush(fields.timeout_s)))


@router.post("/clear", responses=errors(403))
async def clear(context: Shared, _: Operator, fields: ClearFields) -> Number:
    """Remove all blocks, but for those in use, from a tier or from all; returns how many went."""
    return Number(value=await context.waits.run(lambda: context.store.clear(fields.tier)))


@router.post("/pin", responses=errors(403))
async def pin(context: Shared, client: Client, fields: PinWish) -> Pinned:
    """Keep a prefix for a time or until one; see what is pinned, or what bound it is ``beyond``."""

    def pin_all() -> dict[str, object]:
        return pinning.pin(client, _keys(fields), fields.for_s, fields.until_s, fields.tiers)

    return Pinned.model_validate({"value": await context.waits.run(pin_all)})


@router.post("/unpin", responses=errors(403))
async def unpin(context: Shared, client: Client, fields: UnpinWish) -> Number:
    """Let a prefix be ordinary again; returns how many blocks were pinned, for each tier."""
    return Number(value=await context.waits.run(lambda: pinning.unpin(client, _keys(fields), fields.tiers)))


@router.get("/pins")
async def pins(
    context: Shared, client: Client, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> Pinnings:
    """List what the caller has pinned, by tenant, tier and end."""
    return Pinnings.model_validate({"value": await context.threads.run(lambda: pinning.pins(client, limit))})


@router.post("/pool")
async def pool(context: Shared, client: Client, fields: PoolFields) -> PoolTold:
    """Tell what has changed in the engine's own pool; returns what it must let go of.

    An answer of another epoch than was sent means that nothing was taken in: tell all of it, with that epoch.
    """
    told = await context.threads.run(lambda: client.pool.exchange(fields.model_dump()))
    return PoolTold.model_validate({"value": told})


def _keys(fields: KeysFields) -> list[bytes]:
    return [key_bytes(key) for key in fields.keys]
