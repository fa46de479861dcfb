"""The one door to the database: connections, transactions, statements from files, the driver's errors in our words."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, LiteralString, Self, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import psycopg
import structlog
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from ledger import clock
from ledger.errors import CorruptError, DispatchLedgerError, InputError, UnavailableError
from ledger.ids import jitter

LOG = structlog.get_logger(__name__)
T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

_TRIES_MAX = 6
_FIRST_DELAY_S = 0.1
_CONNECT = {"connect_timeout": 10, "keepalives_idle": 10, "tcp_user_timeout": 20_000, "client_encoding": "utf8"}
# What the statements rely on, whatever the server, the database or the role has as its default.
_SESSION: LiteralString = (
    "SET lock_timeout = '60s'; SET timezone = 'UTC'; SET datestyle = 'ISO'; SET bytea_output = 'hex'; "
    "SET standard_conforming_strings = on; SET default_transaction_isolation = 'read committed'"
)
_URL = re.compile(
    r"postgresql\+psycopg://"
    r"(?:(?P<user>[^:/?@]*)(?::(?P<password>[^@]*))?@)?"  # a password may hold anything but the sign that ends it
    r"(?P<server>[^?]*)(?:\?(?P<options>.*))?"
)
_SQL = Path(__file__).parent / "sql"
# Someone else's locks, or a server that is being stopped or started: the same transaction may succeed a moment later.
_PASSING = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
)


@cache
def sql(name: str) -> LiteralString:
    """Return the statement kept in `ledger/sql/<name>.sql`."""
    text: Any = (_SQL / f"{name}.sql").read_text(encoding="utf-8")  # a file of ours is as good as a literal
    return cast("LiteralString", text)


def byte_array(values: Iterable[bytes]) -> str:
    """Return a `bytea[]` as the text that PostgreSQL reads: one string is far cheaper than a list of parameters."""
    return "{" + ",".join(f'"\\\\x{value.hex()}"' for value in values) + "}"


def number_array(values: Iterable[int]) -> str:
    """Return an `int[]` or `bigint[]` as the text that PostgreSQL reads."""
    return "{" + ",".join(map(str, values)) + "}"


def connect_arguments(url: str) -> dict[str, Any]:
    """Return the driver's connection arguments for a `postgresql+psycopg://` URL.

    Host, port and database are read by libpq; user, password and options as SQLAlchemy reads them: what is not
    percent-encoded stands for itself, and `+` in an option is a blank.

    Raises:
        InputError: when it cannot be read.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise InputError("the ledger's URL does not begin with postgresql+psycopg://; mend ledger.database_url")
    login = {name: unquote(parts[name]) for name in ("user", "password") if parts[name]}
    options = dict(parse_qsl(parts["options"] or ""))
    try:
        return conninfo_to_dict(f"postgresql://{parts['server']}", **{**options, **login})
    except psycopg.ProgrammingError as error:
        raise InputError(f"the ledger's URL cannot be read: {reason_of(error)}; mend ledger.database_url") from None


def reason_of(error: BaseException | None) -> str:
    """Return the first line of what the driver says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class Store:
    """One connection to the ledger, opened when first needed and again after it was lost. Not shared by threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction and return what it returns.

        When the connection is lost, also while the commit is being answered, or another transaction was in the way,
        `work` runs again on a new connection, at most six times within about five seconds. So it must be repeatable:
        it may find that its first try has been committed.

        Raises:
            UnavailableError: when the database does not come back in time.
            CorruptError: when a constraint of the ledger refused; this is a bug or a damaged ledger.
        """
        delay_s = _FIRST_DELAY_S
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                return self._transact(work)
            except psycopg.Error as error:
                lost = self._connection is None or self._connection.closed or isinstance(error, _PASSING)
                if not (lost and tries_left):
                    raise translate(error) from error
                LOG.info("transaction is tried again", reason=str(translate(error)), tries_left=tries_left)
            self.close()
            clock.wait_s(jitter(delay_s))
            delay_s *= 2
        raise AssertionError("the last try returns or raises")

    def _transact(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        with self._connection.transaction():
            return work(self._connection)

    def connect(self) -> Connection:
        """Open a connection of its own, which the caller closes; it answers or fails within ten seconds."""
        arguments: dict[str, Any] = dict(_CONNECT) | connect_arguments(self.url)
        connection = psycopg.connect(autocommit=True, application_name="dispatch-ledger", **arguments)
        connection.execute(_SESSION)
        return connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection of its own, to read with cursors while the usual one works; closed at the end."""
        connection = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    @property
    def whole(self) -> "Store":
        """The ledger with everything in it: this one, save in a dry run, which works on a copy of one window."""
        return self


def translate(error: psycopg.Error) -> DispatchLedgerError:
    """Say a driver's error in the product's words, on one line."""
    reason = (error.diag.message_primary or str(error)).strip().splitlines()[0:1]
    text = reason[0] if reason else type(error).__name__
    if isinstance(error, errors.UndefinedTable | errors.UndefinedFunction | errors.UndefinedColumn):
        return UnavailableError(f"the ledger's schema is not this version's: {text}; run: dispatch-ledger db upgrade")
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return CorruptError(f"the ledger refused a write that should be impossible: {text}; nothing of it was kept")
    return UnavailableError(f"the ledger's database failed: {text}; check ledger.database_url, then run again")
