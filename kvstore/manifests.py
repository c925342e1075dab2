"""The readable manifests of namespaces: kept beside their blocks, and read back to tell what differs."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from threading import Event

from kvstore.namespace import MOST_MANIFEST_BYTES, Namespace
from kvstore.tier import Tier

MAX_KNOWN = 4096  # salts are namespaces too, and anybody may invent them


class Manifests:
    """Keeps the manifests of namespaces in the tiers that outlive us, and knows those that are there."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tuple(tiers)
        self._registered: OrderedDict[bytes, Namespace] = OrderedDict()
        self._described: set[bytes] = set()

    def register(self, namespace: Namespace) -> None:
        """Keep a namespace's manifest in every tier, written behind, once. Never blocks.

        Where a queue is full, the next block of the namespace brings it along.
        """
        if namespace.digest in self._described:
            return
        self._registered[namespace.digest] = namespace
        queued = [tier.pool.write(partial(_describe, tier, namespace)) for tier in self._tiers]
        if all(queued):
            self._described.add(namespace.digest)
        while len(self._registered) > MAX_KNOWN:
            digest, _ = self._registered.popitem(last=False)
            self._described.discard(digest)

    def registered(self) -> dict[bytes, Namespace]:
        """Return the namespaces registered here, by digest."""
        return {namespace.digest: namespace for namespace in list(self._registered.values())}

    def known(self, timeout_s: float) -> list[Namespace]:
        """Return the namespaces registered here, and those whose manifests the tiers keep.

        Blocks on the media for at most ``timeout_s``: a tier that does not answer is left out, and so
        is what is no manifest of this version.
        """
        known = self.registered()
        ends_at_s = time.monotonic() + timeout_s
        for collection in [_Collection(tier) for tier in self._tiers]:
            for manifest in collection.wait(max(0.0, ends_at_s - time.monotonic())):
                namespace = parse(manifest)
                if namespace is not None:
                    known.setdefault(namespace.digest, namespace)
        return list(known.values())


class _Collection:
    """The manifests of one tier, on their way."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._manifests: list[str] = []
        self._done = Event()
        if not tier.is_readable() or not tier.pool.read(self._run):
            self._done.set()

    def wait(self, timeout_s: float) -> list[str]:
        """Block until they are there, at most ``timeout_s``, and return them; none when they are late."""
        return self._manifests if self._done.wait(timeout_s) else []

    def _run(self) -> None:
        try:
            if not self._tier.pool.is_closing:
                self._manifests = self._tier.manifests(MAX_KNOWN)
        finally:
            self._done.set()


def _describe(tier: Tier, namespace: Namespace) -> None:
    if not tier.pool.is_closing:
        tier.put_manifest(namespace.digest, namespace.manifest())


def parse(manifest: str) -> Namespace | None:
    """Return the namespace of a manifest; ``None``: it is none of this version."""
    if len(manifest) > MOST_MANIFEST_BYTES:
        return None
    try:
        return Namespace.from_manifest(manifest)
    except ValueError:
        return None
