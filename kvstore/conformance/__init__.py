"""Suites that plugin authors subclass to test their extensions; they need pytest."""

import pytest

pytest.register_assert_rewrite(
    *(
        f"kvstore.conformance.{name}"
        for name in ("backend", "eviction", "eviction_machine", "prompts", "store", "store_keeping")
    )
)
