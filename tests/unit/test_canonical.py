"""Canonical JSON against RFC 8785's own vectors, and every digest against hashlib and json alone."""

import hashlib
import json
from decimal import Decimal

import pytest

from ledger.canonical import (
    ascii_json,
    canonical_json,
    content_hash,
    group_digest,
    idempotency_key,
    plain_digits,
    plain_number,
    sha256,
    utf8,
)

DIGITS_38 = "12345678901234567890123456789012345678"


def test_the_sorting_example_of_the_rfc() -> None:
    """RFC 8785 section 3.2.3: names sort by UTF-16 code units, so an emoji comes before U+FB33."""
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical_json(value)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize("low", ["\ue000", "\uf8ff", "\ufb33", "\uffff"])
@pytest.mark.parametrize("astral", ["\U00010000", "😀", "\U0010ffff"])
def test_names_beyond_the_surrogates_sort_after_astral_ones_at_any_depth(low: str, astral: str) -> None:
    wanted = f'{{"{astral}":2,"{low}":1}}'.encode()
    assert canonical_json({low: 1, astral: 2}) == wanted
    assert canonical_json([{"a": {low: 1, astral: 2}}]) == b'[{"a":' + wanted + b"}]"
    assert canonical_json({"z": [], "a": {"b": [[{low: 1, astral: 2}]]}}) == b'{"a":{"b":[[' + wanted + b']]},"z":[]}'
    assert canonical_json({"d7ff \ud7ff": 1, astral: 2}) == f'{{"d7ff \ud7ff":1,"{astral}":2}}'.encode()


def test_the_string_example_of_the_rfc() -> None:
    """RFC 8785 section 3.2.2.2."""
    value = {"string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/", "literals": [None, True, False]}
    wanted = '{"literals":[null,true,false],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    assert canonical_json(value) == wanted.encode()


def test_every_control_character_is_escaped_as_the_rfc_says() -> None:
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
    for code in range(0x20):
        assert canonical_json(chr(code)) == f'"{short.get(code, f"{chr(92)}u{code:04x}")}"'.encode()
    for raw in ("\u007f", "\u0080", "\u2028", "\u2029", "/", "<", "\ufeff"):
        assert canonical_json(raw) == f'"{raw}"'.encode()


def test_a_lone_surrogate_is_written_as_its_escape() -> None:
    assert canonical_json({"a": "\ud83d", "\udead": 1}) == b'{"a":"\\ud83d","\\udead":1}'
    assert canonical_json(["x\udfff", plain_number("1.5"), None, True]) == b'["x\\udfff",1.5,null,true]'


@pytest.mark.parametrize(
    ("number", "digits"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0.0", "0"),
        ("-0.00", "0"),
        ("0E+10", "0"),
        ("0E-130", "0"),
        ("1", "1"),
        ("-1", "-1"),
        ("+1", "1"),
        ("007", "7"),
        ("1.0", "1"),
        ("1.500", "1.5"),
        ("100", "100"),
        ("1E2", "100"),
        ("1e+2", "100"),
        ("1.5E1", "15"),
        ("15E-1", "1.5"),
        ("1E-7", "0.0000001"),
        ("-1E-7", "-0.0000001"),
        ("1000000000000000000", "1000000000000000000"),
        ("9999999999999999999", "9999999999999999999"),
        ("9007199254740993", "9007199254740993"),
        (DIGITS_38, DIGITS_38),
        (f"-{DIGITS_38}", f"-{DIGITS_38}"),
        (f"0.{DIGITS_38}", f"0.{DIGITS_38}"),
        (f"{DIGITS_38[:20]}.{DIGITS_38[20:]}", f"{DIGITS_38[:20]}.{DIGITS_38[20:]}"),
        (f"{DIGITS_38}E+87", DIGITS_38 + "0" * 87),
        ("9.9999999999999999999999999999999999999E+125", "99999999999999999999999999999999999999" + "0" * 88),
        ("1E-130", "0." + "0" * 129 + "1"),
    ],
)
def test_a_number_is_its_plain_digits(number: str, digits: str) -> None:
    assert plain_digits(number) == digits
    assert canonical_json(plain_number(number)) == digits.encode()
    assert canonical_json({"n": [plain_number(number)]}) == f'{{"n":[{digits}]}}'.encode()
    assert Decimal(digits) == Decimal(number)


@pytest.mark.parametrize(
    "text", ["", " ", "NaN", "-NaN", "sNaN", "Infinity", "-inf", "1E+999999999", "0x10", "1,5", "one", "--1"]
)
def test_what_dynamodb_cannot_hold_is_no_number(text: str) -> None:
    with pytest.raises(ValueError):
        plain_number(text)


def test_the_context_of_decimal_arithmetic_does_not_matter() -> None:
    from decimal import localcontext  # noqa: PLC0415

    with localcontext() as context:
        context.prec = 3
        assert plain_digits(f"{DIGITS_38}.0") == DIGITS_38


def test_ascii_json_escapes_everything_else() -> None:
    text = 'ä\u007f\u0080\u2028\uffff😀\u0000"\\'
    got = ascii_json(canonical_json({"😀": text}))
    assert got == '{"\\ud83d\\ude00":"\\u00e4\x7f\\u0080\\u2028\\uffff\\ud83d\\ude00\\u0000\\"\\\\"}'
    assert json.loads(got) == {"😀": text}
    assert ascii_json(b'{"plain":1}') == '{"plain":1}'


def test_utf8_lets_a_lone_surrogate_pass() -> None:
    assert utf8("é") == b"\xc3\xa9"
    assert utf8("\ud800") == b"\xed\xa0\x80"


# Digests, computed here with nothing of ours


def test_the_content_hash() -> None:
    bodies = [b'{"Id":"R2"}', b'{"Id":"R1"}']
    raw = b"".join(hashlib.sha256(body).digest() for body in bodies)
    assert all(len(hashlib.sha256(body).digest()) == 32 for body in bodies)
    assert content_hash(bodies).hex() == hashlib.sha256(raw).hexdigest()
    assert content_hash(bodies[::-1]) != content_hash(bodies)
    assert content_hash(iter([])).hex() == hashlib.sha256(b"").hexdigest()
    assert sha256(b"x") == hashlib.sha256(b"x").digest()


def test_the_group_digest() -> None:
    assert group_digest([1001, 2001, 3001]).hex() == hashlib.sha256(b"[1001,2001,3001]").hexdigest()[:32]
    assert group_digest(["1001", None]).hex() == hashlib.sha256(b'["1001",null]').hexdigest()[:32]
    assert group_digest([plain_number("1.50")]).hex() == hashlib.sha256(b"[1.5]").hexdigest()[:32]
    assert group_digest(["ü"]).hex() == hashlib.sha256('["ü"]'.encode()).hexdigest()[:32]


def test_the_idempotency_key() -> None:
    group, content = bytes(range(16)), bytes(range(32))
    text = json.dumps(["reward", "2026-09-17T15:00:00Z", group.hex(), content.hex(), 3], separators=(",", ":"))
    key = idempotency_key("reward", "2026-09-17T15:00:00Z", group, content, 3)
    assert key.hex() == hashlib.sha256(text.encode()).hexdigest()
