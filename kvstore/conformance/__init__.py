"""Suites that plugin authors subclass to test their extensions; they need pytest."""

import pytest

pytest.register_assert_rewrite("kvstore.conformance.backend", "kvstore.conformance.eviction")
