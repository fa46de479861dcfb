"""A few connections for many threads: each is lent to one of them at a time, and none waits for a ledger that hangs."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ledger import clock
from ledger.errors import UnavailableError
from ledger.store import Store

_WAIT_S = 5.0
SILENCE_S = 5.0
# While the ledger does not answer: how long one who tries waits for it, and how long nobody tries after that.
_TRY_S = 2.0
_REST_S = 1.0


class StorePool:
    """Lends stores, at most `size` at the same time; each connects when it is first used. Safe to share by threads.

    Once the ledger has not answered one thread, only one at a time may try, with less patience and a pause between two;
    all others are refused at once, until one has been answered. So a ledger that hangs does not hold every thread.

    Args:
        silence_s: how long the database may be silent after it was asked something, in seconds.
    """

    def __init__(self, url: str, size: int, silence_s: float = SILENCE_S) -> None:
        self.url = url
        self._all = [Store(url, silence_s) for _ in range(size)]
        self._free: queue.LifoQueue[Store] = queue.LifoQueue()  # the one used last has a connection
        for store in self._all:
            self._free.put(store)
        self._silence_s = silence_s
        self._away, self._reason = False, ""
        self._rest_until_s = 0.0
        self._one_tries = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Store]:
        """Lend a store for the length of the block; waits up to five seconds for one to come back.

        Raises:
            UnavailableError: when none does, or the ledger does not answer.
        """
        try:
            store = self._free.get(timeout=_WAIT_S)
        except queue.Empty:
            raise UnavailableError("all connections to the ledger are in use; try again in a moment") from None
        try:
            with self._allowed(store):
                yield store
        finally:
            self._free.put(store)

    @contextmanager
    def _allowed(self, store: Store) -> Iterator[None]:
        """Let everybody pass while the ledger answers, and one at a time while it does not."""
        tries = self._away
        if tries and not (clock.monotonic_s() > self._rest_until_s and self._one_tries.acquire(blocking=False)):
            raise UnavailableError(self._reason)
        store.silence_s = min(self._silence_s, _TRY_S) if tries else self._silence_s
        lost = False
        try:
            yield
        except UnavailableError as error:
            if lost := not store.connected:
                self._reason = str(error)
            raise
        finally:
            if lost:
                self._rest_until_s = clock.monotonic_s() + _REST_S
            self._away = lost or (self._away and not store.connected)
            if tries:
                self._one_tries.release()

    def close(self) -> None:
        """Close every connection; nobody may use one any more."""
        for store in self._all:
            store.close()
