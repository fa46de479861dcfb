"""Canonical JSON on generated data: what it says is what was meant, and saying it again changes nothing."""

import json
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.canonical import ascii_json, canonical_json, members, plain_digits, plain_number

CHARS = st.one_of(
    st.characters(exclude_categories=()),
    st.sampled_from(
        ["\u0000", "\u001f", "\u007f", "\u2028", "\ud800", "\udfff", "\ue000", "\uffff", "😀", '"', "\\", "/"]
    ),
)
TEXTS = st.text(CHARS, max_size=6)
NUMBERS = st.one_of(
    st.integers(-(10**38) + 1, 10**38 - 1).map(str),
    st.builds(
        lambda digits, exponent: f"{digits}E{exponent}", st.integers(-(10**38) + 1, 10**38 - 1), st.integers(-130, 87)
    ),
)


class Number(str):
    """The text of a number, to be told from text."""

    __slots__ = ()


DATA: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), TEXTS, NUMBERS.map(Number)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def encode(value: Any) -> bytes:
    return canonical_json(_prepared(value))


def _prepared(value: Any) -> Any:
    if isinstance(value, Number):
        return plain_number(str(value))
    if isinstance(value, list):
        return [_prepared(one) for one in value]
    if isinstance(value, dict):
        return {name: _prepared(one) for name, one in value.items()}
    return value


def reference(value: Any) -> str:
    """RFC 8785, with numbers as plain digits, written down a second time."""
    if isinstance(value, Number):
        number = Decimal(str(value))
        text = f"{number:f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if not number else text
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(reference, value)) + "]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{reference(name)}:{reference(value[name])}" for name in names) + "}"
    return {None: "null", True: "true", False: "false"}[value]


def _escaped(char: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if char in short:
        return short[char]
    return f"\\u{ord(char):04x}" if char < " " or "\ud800" <= char <= "\udfff" else char


@settings(max_examples=2000, deadline=None)
@given(value=DATA)
def test_it_is_what_the_rfc_says(value: Any) -> None:
    assert encode(value) == reference(value).encode("utf-8")


def _numbered(text: str) -> Number:
    return Number(text)


@settings(max_examples=1000, deadline=None)
@given(value=DATA)
def test_read_and_written_again_it_is_the_same(value: Any) -> None:
    once = encode(value)
    read = json.loads(once, parse_int=_numbered, parse_float=_numbered)
    assert encode(read) == once


@settings(max_examples=1000, deadline=None)
@given(value=DATA)
def test_ascii_says_the_same(value: Any) -> None:
    once = encode(value)
    text = ascii_json(once)
    assert text.isascii()
    assert json.loads(text, parse_int=_numbered, parse_float=_numbered) == json.loads(
        once, parse_int=_numbered, parse_float=_numbered
    )


@given(value=st.dictionaries(TEXTS, DATA, max_size=4))
def test_an_object_taken_apart_has_canonical_members(value: dict[str, Any]) -> None:
    assert {name: bytes(raw) for name, raw in members(encode(value)).items()} == {
        name: encode(member) for name, member in value.items()
    }


@given(number=NUMBERS)
def test_digits_keep_the_number(number: str) -> None:
    text = plain_digits(number)
    assert Decimal(text) == Decimal(number)
    assert "E" not in text.upper()
    assert plain_digits(text) == text
    raw = plain_number(number)
    assert (bytes(raw).decode() if isinstance(raw, msgspec.Raw) else str(raw)) == text
