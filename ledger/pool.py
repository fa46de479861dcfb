"""A few connections for many threads: each is lent to one of them at a time."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from ledger.errors import UnavailableError
from ledger.store import Store

_WAIT_S = 5.0


class StorePool:
    """Lends stores, at most `size` at the same time; each connects when it is first used. Safe to share by threads."""

    def __init__(self, url: str, size: int) -> None:
        self.url = url
        self._all = [Store(url) for _ in range(size)]
        self._free: queue.LifoQueue[Store] = queue.LifoQueue()  # the one used last has a connection
        for store in self._all:
            self._free.put(store)

    @contextmanager
    def lend(self) -> Iterator[Store]:
        """Lend a store for the length of the block; waits up to five seconds for one to come back.

        Raises:
            UnavailableError: when none does.
        """
        try:
            store = self._free.get(timeout=_WAIT_S)
        except queue.Empty:
            raise UnavailableError("all connections to the ledger are in use; try again in a moment") from None
        try:
            yield store
        finally:
            self._free.put(store)

    def close(self) -> None:
        """Close every connection; nobody may use one any more."""
        for store in self._all:
            store.close()
