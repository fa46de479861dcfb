"""The one door to randomness: identifiers that sort by the time they were made."""

import secrets
from uuid import UUID

from ledger import clock


def new_id() -> UUID:
    """Return a UUID version 7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits.

    Made by the writer and not by the database, so that a transaction whose answer was lost can be told from one that
    never happened, by looking for the id.
    """
    millis = int(clock.utc_now().timestamp() * 1000) & ((1 << 48) - 1)
    rand_a = secrets.randbits(12)
    rand_b = secrets.randbits(62)
    return UUID(int=(millis << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | rand_b)


def jitter(delay_s: float) -> float:
    """Return a random delay between half of `delay_s` and all of it, for retries that must not march in step."""
    return delay_s * (0.5 + secrets.randbelow(501) / 1000)
