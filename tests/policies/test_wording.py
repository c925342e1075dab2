from __future__ import annotations

import pytest

from policies.wording import format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (5e-6, "5 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.1234, "123 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.5, "1.5 s"),
        (99.96, "100 s"),
        (1234.5, "1234 s"),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
