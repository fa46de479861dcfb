"""What SIGINT and SIGTERM mean to a command: stop after the step in hand."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dispatch.run import Cancellation
from ops.context import CONTEXT


@contextmanager
def cancellable(
    at_once: Callable[[], None] = lambda: None, document: Callable[[], object] | None = None
) -> Iterator[Cancellation]:
    """Turn SIGINT and SIGTERM into a request to stop after the step in hand; a second one ends the process at once.

    Args:
        at_once: what the second one still does.
        document: makes the document of the command as far as it has come, for the second one; an error by default.
    """
    cancellation = Cancellation()

    def ask(number: int, _frame: Any) -> None:
        if cancellation.is_asked:
            at_once()
            CONTEXT.end_at_once(number, document)
        cancellation.ask(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancellation
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
