"""What a consumer hands in about its work: a result as canonical JSON, a reason as text; both bounded. Pure."""

from typing import Any

from ledger.canonical import canonical_json
from ledger.strict_json import NotJsonError, exact

RESULT_BYTES_MAX = 64 * 1024
REASON_CHARS_MAX = 1000
_NO_REASON = "no reason was given"


def encode_result(result: Any) -> bytes:
    """Return a result as canonical JSON: what JSON can say, and `Decimal`; every digit of a number is kept.

    Raises:
        ValueError: when it is no JSON, or longer than `RESULT_BYTES_MAX`; says so without the result itself.
    """
    try:
        encoded = canonical_json(exact(result))
    except NotJsonError as error:
        raise ValueError(f"the result cannot be written as JSON: {error}") from None
    except RecursionError:
        raise ValueError("the result cannot be written as JSON: it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"the result cannot be written as JSON: {type(error).__name__}") from None
    if len(encoded) > RESULT_BYTES_MAX:
        raise ValueError(f"the result has {len(encoded)} bytes as JSON; {RESULT_BYTES_MAX} are allowed")
    return encoded


def bounded_reason(reason: str) -> str:
    """Return a reason as text that the ledger can keep: not empty, at most `REASON_CHARS_MAX` characters, no NUL."""
    text = reason.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode().strip()
    return text[:REASON_CHARS_MAX] or _NO_REASON
