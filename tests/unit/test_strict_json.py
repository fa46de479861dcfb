"""JSON from outside: what readers do not agree on is refused, and numbers keep every digit."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.strict_json import NESTING_MAX, NUMBER_CHARS_MAX, Digits, NotJsonError, TooMuchError, exact, read_json

NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)


@given(NUMBERS)
@example("-0")
def test_a_number_comes_back_as_it_was_written(text: str) -> None:
    read = read_json(f"[{text}]".encode())
    written = msgspec.json.encode(exact(read))
    assert written == f"[{text}]".encode()
    assert isinstance(read[0], int if text.lstrip("-").isdigit() and text != "-0" else Digits)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_everything_else_is_read_as_usual(value: Any) -> None:
    assert read_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"{}{}", b"NaN", b"[-Infinity]", b'{"a":1,"a":1}', b'[{"a":{"b":1,"\\u0062":2}}]', b'"\xff"',
        b"\xef\xbb\xbf{}", b"01", "[]".encode("utf-16"), b"'a'", b'"a\nb"',
    ],
)  # fmt: skip
def test_what_is_none(body: bytes) -> None:
    with pytest.raises(NotJsonError):
        read_json(body)


def test_the_bounds() -> None:
    at_most = b"[" * NESTING_MAX + b"]" * NESTING_MAX
    assert read_json(at_most) is not None
    assert read_json(b'["' + b"[{" * 1000 + b'\\"[", 1]') is not None, "in text there is no nesting"
    assert read_json(b"[" + b"[],{}," * 1000 + b"1]") is not None, "side by side there is none either"
    with pytest.raises(TooMuchError, match=f"more than {NESTING_MAX} deep"):
        read_json(b'{"a":' + at_most + b"}")
    for number in ("1" * NUMBER_CHARS_MAX, "0." + "1" * (NUMBER_CHARS_MAX - 2)):
        assert read_json(number.encode()) > 0
        with pytest.raises(TooMuchError, match=f"a number has {NUMBER_CHARS_MAX + 1} characters"):
            read_json(number.encode() + b"1")


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": (float("-inf"),)}])
def test_numbers_that_json_cannot_say(value: Any) -> None:
    with pytest.raises(NotJsonError, match="is no JSON"):
        exact(value)
