"""Which namespaces are known: those registered here, and those that the tiers keep manifests of."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from kvstore import manifests
from kvstore.errors import BackendError
from kvstore.namespace import Namespace
from tests.kvstore.conftest import NAMESPACE, Rig
from tests.kvstore.faults import waiting


def test_what_is_registered_and_what_the_tiers_keep_is_known(rig: Rig) -> None:
    rig.put(rig.open(), 1)
    rig.stores[0].close()
    store = rig.open()
    another = replace(NAMESPACE, kv_dtype="bfloat16")
    store.register_namespace(another)
    assert store.known_namespaces() == [another, NAMESPACE]


def test_what_is_no_manifest_is_left_out(rig: Rig) -> None:
    rig.medium.kept_manifests = {b"1": "nonsense", b"2": NAMESPACE.manifest(), b"3": "{}"}
    rig.medium.kept_manifests[b"4"] = NAMESPACE.manifest().replace("float32", "float16")
    rig.medium.kept_manifests[b"5"] = '"' + "x" * (2 << 20) + '"'
    assert rig.open().known_namespaces() == [NAMESPACE]


def test_a_tier_that_fails_is_left_out_and_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rig.open()
    store.register_namespace(NAMESPACE)

    def fail() -> list[str]:
        raise BackendError("disk", "manifests", "no")

    monkeypatch.setattr(rig.medium, "manifests", fail)
    assert store.known_namespaces() == [NAMESPACE]
    assert rig.counts(store, "disk")["read_faults"] == 1


def test_a_tier_that_does_not_answer_is_left_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rig.open()
    may_answer = threading.Event()
    monkeypatch.setattr(rig.medium, "manifests", lambda: [NAMESPACE.manifest()] * may_answer.wait(5.0))
    assert store.known_namespaces(timeout_s=0.01) == []
    may_answer.set()
    assert store.known_namespaces() == [NAMESPACE]


def test_tenants_without_number_do_not_fill_the_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_KNOWN", 3)
    store = rig.open(disk_blocks=0)
    spaces = [NAMESPACE.with_salt(str(number)) for number in range(5)]
    for space in spaces:
        store.register_namespace(space)
    assert store.known_namespaces() == spaces[-3:]


def test_a_namespace_whose_manifest_found_no_place_in_the_queue_is_brought_along_later(rig: Rig) -> None:
    store = rig.open(max_queued_writes=1)
    may_write = threading.Event()
    rig.medium.fail = waiting("put", may_write)
    rig.put(store, 1, flush=False)
    another: Namespace = replace(NAMESPACE, kv_dtype="bfloat16")
    while rig.put(store, 2, 3, 4, flush=False):
        pass
    store.register_namespace(another)
    may_write.set()
    assert store.flush(5.0)
    store.register_namespace(another)
    assert store.flush(5.0)
    assert another.digest in rig.medium.kept_manifests
