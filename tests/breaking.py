"""Breaks a run off at its n-th transaction: the process is killed there, or the database's answer is lost."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from ledger.store import Connection, Store

Transact = Callable[[Store, Callable[[Connection], Any]], Any]


class KilledError(BaseException):
    """The process is gone; nothing of it may reach the ledger any more."""


@dataclass
class Break(ABC):
    """Watches the transactions of the thread that made it, and breaks one of them.

    Attributes:
        at: which transaction, from 1; 0 for none.
        after: whether the commit takes effect first.
        seen: the works done so far, in order.
    """

    at: int = 0
    after: bool = True
    seen: list[str] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Watch until the patch is undone."""
        usual = Store._transact
        owner = threading.get_ident()

        def transact(store: Store, work: Callable[[Connection], Any]) -> Any:
            if threading.get_ident() != owner:
                return usual(store, work)
            self.seen.append(work.__qualname__)
            if not self.at or len(self.seen) < self.at:
                return usual(store, work)
            return self._break(usual, store, work)

        patch.setattr(Store, "_transact", transact)

    @property
    def where(self) -> str:
        """The work that was broken."""
        return self.seen[self.at - 1]

    @abstractmethod
    def _break(self, usual: Transact, store: Store, work: Callable[[Connection], Any]) -> Any:
        """Do, or leave undone, what is to be broken, and everything after it."""


class Death(Break):
    """Ends the thread, for good."""

    def _break(self, usual: Transact, store: Store, work: Callable[[Connection], Any]) -> Any:
        if len(self.seen) == self.at:
            if self.after:
                usual(store, work)
            else:
                self._begin_only(usual, store, work)
        store.close()
        raise KilledError

    @staticmethod
    def _begin_only(usual: Transact, store: Store, work: Callable[[Connection], Any]) -> None:
        def die(connection: Connection) -> None:
            work(connection)
            raise KilledError

        with pytest.raises(KilledError):
            usual(store, die)


class LostAnswer(Break):
    """Loses the answer of the one transaction; the thread goes on."""

    def _break(self, usual: Transact, store: Store, work: Callable[[Connection], Any]) -> Any:
        if len(self.seen) != self.at:
            return usual(store, work)
        if self.after:
            usual(store, work)
            store.close()
            raise psycopg.OperationalError("the answer to the commit was lost")
        return usual(store, lambda connection: self._lose(connection, work))

    @staticmethod
    def _lose(connection: Connection, work: Callable[[Connection], Any]) -> None:
        work(connection)
        connection.close()
        raise psycopg.OperationalError("the connection was lost before the commit")
