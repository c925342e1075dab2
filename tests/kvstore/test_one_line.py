import pytest

from kvstore.errors import one_line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such key"), "no such key"),
        (ValueError("first\n  second\n"), "first second"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("x" * 1000), "x" * 300),
    ],
)
def test_what_an_error_says_is_one_line(error: Exception, told: str) -> None:
    assert one_line(error) == told
