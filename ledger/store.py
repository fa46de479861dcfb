"""The one door to the database: connections, transactions, statements from files, the driver's errors in our words."""

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator
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
from ledger.errors import CorruptError, DispatchLedgerError, FencedError, InputError, Refusal, UnavailableError
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
# Of the longest silence that is borne, a statement may take so much: a server that lives says no before it seems dead.
_STATEMENT_PART = 0.8
_URL = re.compile(
    r"postgresql(?:\+psycopg)?://"
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
    """Return the driver's connection arguments for a `postgresql://` or `postgresql+psycopg://` URL.

    Host, port and database are read by libpq; user, password and options as SQLAlchemy reads them: what is not
    percent-encoded stands for itself, and `+` in an option is a blank.

    Raises:
        InputError: when it cannot be read.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise InputError("the ledger's URL does not begin with postgresql://; mend ledger.database_url")
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


class SilentError(psycopg.OperationalError):
    """The server has said nothing for too long; what it was asked for may have been done."""


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is given up when the server is silent for too long, though its machine may still take data.

    Attributes:
        silence_s: how long the server may be silent after it was asked something.
    """

    silence_s = math.inf

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait for the server, as the driver does: it comes back every tenth of a second, whether or not it was heard.

        Raises:
            SilentError: when the server is silent for too long; the connection is closed then.
        """
        if self.silence_s == math.inf:
            return super().wait(gen, *args, **kwargs)
        return super().wait(self._bounded(gen, clock.monotonic_s() + self.silence_s), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, T], until_s: float) -> Generator[Any, Any, T]:
        heard = None
        while True:
            try:
                wanted = gen.send(heard)
            except StopIteration as end:
                return cast("T", end.value)
            if clock.monotonic_s() > until_s:
                self.close()
                raise SilentError(f"no answer within {self.silence_s:g} s")
            heard = yield wanted


class Store:
    """One connection to the ledger, opened when first needed and again after it was lost. Not shared by threads.

    Args:
        silence_s: how long the server may be silent after it was asked something, in seconds; without a bound, a server
            that hangs is waited for. With one, the server refuses what takes it longer than four fifths of that. It may
            be changed later, which does not change what the server refuses.
    """

    def __init__(self, url: str, silence_s: float = math.inf) -> None:
        self.url = url
        self.silence_s = silence_s
        self._statement_ms = None if silence_s == math.inf else int(silence_s * 1000 * _STATEMENT_PART)
        self._connection: BoundedConnection | None = None

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

    @property
    def connected(self) -> bool:
        """Whether there is a connection, and nothing has shown that it is lost."""
        return self._connection is not None and not self._connection.closed

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction and return what it returns.

        When the connection is lost, also while the commit is being answered, or another transaction was in the way,
        `work` runs again on a new connection, at most six times within about five seconds. So it must be repeatable:
        it may find that its first try has been committed. A server that was silent for too long is not asked again.

        Raises:
            UnavailableError: when the database does not come back in time, or is silent for too long.
            FencedError: when `work` does; the ledger counts it.
            CorruptError: when a constraint of the ledger refused; this is a bug or a damaged ledger.
        """
        delay_s = _FIRST_DELAY_S
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                return self._transact(work)
            except FencedError as error:
                self._count(error.refusal)
                raise
            except psycopg.Error as error:
                passing = not self.connected or isinstance(error, _PASSING)
                if not passing or self._is_silence(error) or not tries_left:
                    raise translate(error) from error
                LOG.info("transaction is tried again", reason=str(translate(error)), tries_left=tries_left)
            self.close()
            clock.wait_s(jitter(delay_s))
            delay_s *= 2
        raise AssertionError("the last try returns or raises")

    def _transact(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        self._connection.silence_s = self.silence_s
        with self._connection.transaction():
            return work(self._connection)

    def _count(self, refusal: Refusal | None) -> None:
        """Count a refused write as well as it goes, in a transaction of its own: that of the write is rolled back."""
        if refusal is not None and self._connection is not None:
            with suppress(psycopg.Error), self._connection.transaction():
                count_refusal(self._connection, refusal)

    def _is_silence(self, error: psycopg.Error) -> bool:
        return self.silence_s < math.inf and isinstance(error, SilentError | errors.ConnectionTimeout)

    def connect(self) -> BoundedConnection:
        """Open a connection of its own, which the caller closes; it answers or fails within ten seconds."""
        arguments: dict[str, Any] = dict(_CONNECT) | connect_arguments(self.url)
        if self.silence_s < math.inf:
            arguments["connect_timeout"] = math.ceil(self.silence_s)
        connection = BoundedConnection.connect(autocommit=True, application_name="dispatch-ledger", **arguments)
        connection.silence_s = self.silence_s
        connection.execute(_SESSION)
        if self._statement_ms is not None:
            connection.execute("SELECT set_config('statement_timeout', %s, false)", (str(self._statement_ms),))
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


def count_refusal(connection: Connection, refusal: Refusal) -> None:
    """Count a write that a fence has refused."""
    connection.execute(sql("count_refusal"), vars(refusal))


def translate(error: psycopg.Error) -> DispatchLedgerError:
    """Say a driver's error in the product's words, on one line."""
    reason = (error.diag.message_primary or str(error)).strip().splitlines()[0:1]
    text = reason[0] if reason else type(error).__name__
    if isinstance(error, errors.UndefinedTable | errors.UndefinedFunction | errors.UndefinedColumn):
        return UnavailableError(f"the ledger's schema is not this version's: {text}; run: dispatch-ledger db upgrade")
    if isinstance(error, errors.QueryCanceled):
        return UnavailableError(f"the ledger took too long: {text}; ask for less, or try again later")
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return CorruptError(f"the ledger refused a write that should be impossible: {text}; nothing of it was kept")
    return UnavailableError(f"the ledger's database failed: {text}; check ledger.database_url, then run again")
