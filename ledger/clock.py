"""The one door to time in Python. Whatever is decided by time in the ledger uses the database's clock instead."""

import threading
import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return this machine's time in UTC; good for messages, never for leases."""
    return datetime.now(UTC)


def monotonic_s() -> float:
    """Return seconds on a clock that never jumps; only differences mean anything."""
    return time.monotonic()


def wait_s(seconds: float, wake: threading.Event | None = None) -> bool:
    """Wait up to `seconds`, or until `wake` is set; return whether it was set."""
    return (wake or threading.Event()).wait(max(0.0, seconds))
