"""JSON from outside, read strictly: what means two things to two readers is refused, and no digit is lost. Pure."""

import json
import re
from decimal import Decimal
from typing import Any, NoReturn, Self

import msgspec

from ledger.canonical import plain_digits

NESTING_MAX = 100
NUMBER_CHARS_MAX = 1000
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class NotJsonError(ValueError):
    """It is no JSON, or one that readers do not agree on."""


class TooMuchError(ValueError):
    """It is JSON, and more of it than is taken."""


class Digits(float):
    """A number with a fraction or an exponent, or -0: its nearest float, maybe infinite, and how it was written."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Take a JSON number."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def read_json(body: bytes) -> Any:
    """Read one JSON document: text, ints, `Digits`, lists and dicts.

    Raises:
        NotJsonError: when it is none, is not in UTF-8, says NaN or Infinity, or names a member of an object twice.
        TooMuchError: when it is nested deeper than `NESTING_MAX`, or a number is longer than `NUMBER_CHARS_MAX`.
    """
    _require_shallow(body)
    try:
        return json.loads(
            body.decode(),
            parse_int=_whole,
            parse_float=lambda text: Digits(_bounded(text)),
            parse_constant=_refused,
            object_pairs_hook=_each_once,
        )
    except UnicodeDecodeError:
        raise NotJsonError("it is not in UTF-8") from None
    except json.JSONDecodeError as error:
        raise NotJsonError(f"{error.msg}, at character {error.pos}") from None


def exact(value: Any) -> Any:
    """Return plain data as `canonical_json` takes it, with every digit of each number.

    Raises:
        ValueError: when a number is none that JSON can say.
    """
    if isinstance(value, Digits):
        return msgspec.Raw(value.text.encode())
    if isinstance(value, Decimal):
        return msgspec.Raw(plain_digits(str(value)).encode())
    if isinstance(value, float) and value - value != 0:
        raise NotJsonError(f"{value} is no JSON")
    if isinstance(value, dict):
        return {name: exact(member) for name, member in value.items()}
    return [exact(member) for member in value] if isinstance(value, list | tuple) else value


def _require_shallow(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= NESTING_MAX:
        return
    depth = 0
    for found in _BRACKETS.finditer(body):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
        if depth > NESTING_MAX:
            raise TooMuchError(f"arrays and objects are nested more than {NESTING_MAX} deep")


def _bounded(text: str) -> str:
    if len(text) > NUMBER_CHARS_MAX:
        raise TooMuchError(f"a number has {len(text)} characters; {NUMBER_CHARS_MAX} are taken, send more as text")
    return text


def _whole(text: str) -> int | Digits:
    return Digits(text) if text == "-0" else int(_bounded(text))


def _refused(name: str) -> NoReturn:
    raise NotJsonError(f"{name} is no JSON")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotJsonError("an object has two members of one name")
    return members
