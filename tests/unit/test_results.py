"""What a consumer hands in: results as canonical JSON with every digit, reasons that the ledger can keep."""

from decimal import Decimal
from typing import Any

import pytest

from ledger.results import REASON_CHARS_MAX, RESULT_BYTES_MAX, bounded_reason, encode_result


@pytest.mark.parametrize(
    ("result", "encoded"),
    [
        (None, b"null"),
        ({"b": 1, "a": [True, "x"]}, b'{"a":[true,"x"],"b":1}'),
        (Decimal("12345678901234567890.123456789012345670"), b"12345678901234567890.12345678901234567"),
        ({"sum": Decimal("1E+3"), "of": (1, 2)}, b'{"of":[1,2],"sum":1000}'),
        (10**37, b"1" + b"0" * 37),
        ("nul \0 and half \ud800", b'"nul \\u0000 and half \\ud800"'),
        ("x" * (RESULT_BYTES_MAX - 2), b'"' + b"x" * (RESULT_BYTES_MAX - 2) + b'"'),
    ],
)
def test_what_json_can_say(result: Any, encoded: bytes) -> None:
    assert encode_result(result) == encoded


def of_itself() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize("result", [object(), {"a": 1j}, Decimal("NaN"), of_itself(), "x" * (RESULT_BYTES_MAX - 1)])
def test_what_it_cannot(result: Any) -> None:
    with pytest.raises(ValueError, match="the result"):
        encode_result(result)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (" it broke \n", "it broke"),
        ("", "no reason was given"),
        ("a\0b\ud800", "a\\0b\\ud800"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_reasons(given: str, kept: str) -> None:
    assert bounded_reason(given) == kept
    assert len(kept) <= REASON_CHARS_MAX
