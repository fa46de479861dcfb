"""How a command ends when it is asked to: after the step in hand, everything recorded."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dispatch.run import Cancellation


@contextmanager
def cancellable() -> Iterator[Cancellation]:
    """Turn SIGINT and SIGTERM into a request to stop after the step in hand; a second one ends the process at once."""
    cancellation = Cancellation()

    def ask(number: int, _frame: Any) -> None:
        if cancellation.asked.is_set():
            os._exit(128 + number)
        cancellation.ask(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancellation
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
