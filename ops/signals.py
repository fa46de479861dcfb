"""What SIGINT and SIGTERM mean to a command: stop after the step in hand."""

import _thread
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dispatch.run import Cancellation


@contextmanager
def cancellable(at_once: Callable[[], None] = lambda: None) -> Iterator[Cancellation]:
    """Turn SIGINT and SIGTERM into a request to stop after the step in hand; a second one ends the process at once.

    Args:
        at_once: what the second one still does.
    """
    cancellation = Cancellation()
    asked = False

    def ask(number: int, _frame: Any) -> None:
        nonlocal asked
        if asked:
            at_once()
            os._exit(128 + number)
        asked = True
        # Not here: the signal may have come in the middle of a wait for the request, which holds the lock it needs.
        _thread.start_new_thread(cancellation.ask, (number,))

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancellation
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
