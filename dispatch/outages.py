"""What is said of a service that does not answer for a while: when that begins, now and then, and when it is over."""

import threading
from datetime import timedelta
from typing import Any

import structlog

from ledger import clock

LOG = structlog.get_logger(__name__)
SAID_EVERY = timedelta(minutes=5)


class Outage:
    """Says of trouble what a person wants to know, without a line for every try. Safe to share between threads.

    What several threads meet at once is said once.

    Args:
        waits: the event to log when it begins, and every five minutes while it lasts.
        goes_on: the event to log when it is over.
        facts: what to log with both.
    """

    def __init__(self, waits: str, goes_on: str, **facts: Any) -> None:
        self._waits, self._goes_on, self._facts = waits, goes_on, facts
        self._lock = threading.Lock()
        self._tries = 0
        self._begun_s = self._said_s = 0.0

    @property
    def lasts(self) -> bool:
        """Whether the last that was heard of it is that it goes on."""
        return self._tries > 0

    def met(self, reason: str) -> None:
        """Note a try that failed, and say so if it is time to."""
        with self._lock:
            now_s = clock.monotonic_s()
            self._tries += 1
            if self._tries == 1:
                self._begun_s = now_s
            elif now_s - self._said_s < SAID_EVERY.total_seconds():
                return
            self._said_s = now_s
        LOG.warning(self._waits, reason=reason, **self._facts)

    def over(self) -> None:
        """Note that it works, and say so if it did not before."""
        with self._lock:
            tries, self._tries = self._tries, 0
            lasted_s = round(clock.monotonic_s() - self._begun_s, 1)
        if tries:
            LOG.warning(self._goes_on, failed_tries=tries, lasted_s=lasted_s, **self._facts)
