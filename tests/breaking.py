"""Breaks a run off at its n-th transaction: it is killed there, or the answer is lost; or takes the database away."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
import pytest

from ledger.store import Connection, Store, connect_arguments
from tests.rig import Rig

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
        wrote: of each of them, whether it wrote anything; only kept when none is to be broken.
    """

    at: int = 0
    after: bool = True
    seen: list[str] = field(default_factory=list)
    wrote: list[bool] = field(default_factory=list)

    @property
    def points(self) -> list[int]:
        """Where to break a run that has been watched to its end: every transaction that writes, and each kind of look.

        A look changes nothing, so to break off in one is to break off after the last write and what AWS was told since;
        that is what breaking the next write before its commit does. And to lose one's answer only repeats it.
        """
        first = {name: at for at, name in reversed(list(enumerate(self.seen, 1)))}
        watched = enumerate(zip(self.seen, self.wrote, strict=True), 1)
        return [at for at, (name, wrote) in watched if wrote or first[name] == at]

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Watch until the patch is undone."""
        usual = Store._transact
        owner = threading.get_ident()

        def transact(store: Store, work: Callable[[Connection], Any]) -> Any:
            if threading.get_ident() != owner:
                return usual(store, work)
            self.seen.append(work.__qualname__)
            if not self.at:
                return usual(store, partial(self._watch, work))
            if len(self.seen) < self.at:
                return usual(store, work)
            return self._break(usual, store, work)

        patch.setattr(Store, "_transact", transact)

    @property
    def where(self) -> str:
        """The work that was broken."""
        return self.seen[self.at - 1]

    def _watch(self, work: Callable[[Connection], Any], connection: Connection) -> Any:
        done = work(connection)
        ((wrote,),) = connection.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchall()
        self.wrote.append(wrote)
        return done

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


class Database:
    """The ledger's database, which can go away for a while, for everybody.

    Args:
        server: the URL of another database of the same server.
        rig: whose ledger it is.
    """

    def __init__(self, server: str, rig: Rig) -> None:
        self._server, self._rig = server, rig
        self._name = connect_arguments(rig.url)["dbname"]

    def _tell(self, statement: str) -> None:
        with psycopg.connect(**connect_arguments(self._server), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse every connection, and end those that there are."""
        if self._rig._reader is not None:
            self._rig._reader.close()
            self._rig._reader = None
        self._tell(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
        self._tell(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'")
        try:
            yield
        finally:
            self._tell(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")
