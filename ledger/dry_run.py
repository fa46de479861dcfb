"""The ledger as a dry run sees it: a private copy of one window in temporary tables, which the usual code works on.

A dry run is a real run whose ledger, objects and queues nobody else ever sees: what it says is what the same code does.
On its connection each table that a run writes is hidden behind a temporary one of the same name, and PostgreSQL is told
to refuse every write to anything else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from ledger.errors import UnavailableError
from ledger.facts import FindingState, StoredObject
from ledger.instants import Window
from ledger.runs import pipeline_id
from ledger.store import BoundedConnection, Connection, Store, number_array, sql, translate

T = TypeVar("T")
# Every table that a dispatch or a reconcile writes; what only consumers or commands write is read where it is.
SHADOWED = (
    "pipelines",
    "destinations",
    "windows",
    "events",
    "runs",
    "pages",
    "claims",
    "entries",
    "payload_parts",
    "open_attempts",
    "attempts",
    "staged_records",
    "findings",
)
_VIEWS = ("all_attempts", "entry_states", "same_promises")
# Ids from here on were given by a dry run: no ledger gets that far. The number stands in dry_make.sql too.
FIRST_NEW_ID = 2**62
# Nothing else tidies temporary tables up: what is promised and confirmed leaves as many dead rows.
_TIDIED_EVERY = 200


class ReadOnlyStore(Store):
    """A connection through which nothing permanent can be written: PostgreSQL refuses."""

    def connect(self) -> BoundedConnection:
        """Open a connection of its own, as `Store` does."""
        connection = super().connect()
        connection.execute("SET default_transaction_read_only = on")
        return connection


class DryStore(ReadOnlyStore):
    """The ledger of a dry run, for the windows that it is told to take, one at a time.

    Args:
        url: the ledger that is copied from.
        pipeline: the name of the pipeline whose windows are taken.
    """

    def __init__(self, url: str, pipeline: str) -> None:
        super().__init__(url)
        self._pipeline = pipeline
        self._whole = ReadOnlyStore(url)
        self._made = False
        self._ledger = ""
        self._transactions = 0

    def close(self) -> None:
        """Close the connections; the copy is gone then."""
        super().close()
        self._whole.close()

    @property
    def whole(self) -> Store:
        """The ledger itself, to read what is not copied."""
        return self._whole

    def connect(self) -> BoundedConnection:
        """Open the one connection, and make empty tables there.

        Raises:
            UnavailableError: when there was one before: the copy was lost with it; or when its user may not make any.
        """
        if self._made:
            raise UnavailableError(
                "the connection to the ledger's database was lost, and with it what the dry run had worked out; "
                "nothing was written, run it again",
            )
        connection = super().connect()
        try:
            with _writing(connection):
                self._make(connection)
        except psycopg.OperationalError:  # it was lost: another try may do
            connection.close()
            raise
        except psycopg.errors.InsufficientPrivilege as error:
            connection.close()
            raise UnavailableError(
                f"a dry run works in temporary tables, and the database says: {error.diag.message_primary}; "
                "grant TEMPORARY on it to the user of ledger.database_url",
            ) from error
        self._made = True
        return connection

    def _make(self, connection: Connection) -> None:
        place = (
            "SELECT nspname FROM pg_namespace JOIN pg_class ON relnamespace = pg_namespace.oid "
            "WHERE pg_class.oid = 'claims'::regclass"
        )
        row = connection.execute(place).fetchone()
        assert row is not None, "the cast found it"
        self._ledger = str(row[0])
        # Told before there are any temporary tables, so that their names say nothing of a schema.
        views = connection.execute(
            "SELECT name, pg_get_viewdef(name::regclass) FROM unnest(%s::text[]) AS name", [[*_VIEWS]]
        )
        definitions: dict[str, str] = dict(views.fetchall())
        first = "SELECT set_config('search_path', 'pg_temp, ' || current_setting('search_path'), false)"
        connection.execute(first)
        for name in SHADOWED:
            table = "CREATE TEMPORARY TABLE {name} (LIKE {ledger}.{name} INCLUDING ALL)"
            connection.execute(self._told(table, name=psycopg.sql.Identifier(name)))
        for name in _VIEWS:
            view = psycopg.sql.SQL("CREATE TEMPORARY VIEW {} AS " + definitions[name])
            connection.execute(view.format(psycopg.sql.Identifier(name)))
        connection.execute(self._told(sql("dry_make"), pipeline=psycopg.sql.Literal(self._pipeline)))

    def _told(self, statement: Any, **values: psycopg.sql.Composable) -> psycopg.sql.Composed:
        return psycopg.sql.SQL(statement).format(ledger=psycopg.sql.Identifier(self._ledger), **values)

    def take(self, window: Window) -> None:
        """Copy what the ledger holds of a window, of one moment; what was copied or done before is forgotten.

        Claims on the hour are kept, since the next window shares them.

        Raises:
            UnavailableError: when the database cannot be reached.
        """
        pipeline = self.transaction(lambda connection: pipeline_id(connection, self._pipeline))
        values = {
            "pipeline_id": pipeline,
            "start_s": window.start_s,
            "start_ns": window.start_ns,
            "end_ns": window.end_ns,
        }
        statements = self._told(sql("dry_take"), **{name: psycopg.sql.Literal(one) for name, one in values.items()})
        assert self._connection is not None, "it was just used"
        try:
            with _writing(self._connection):
                self._connection.execute(statements)
        except psycopg.Error as error:
            raise translate(error) from error

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` as `Store` does, and tidy up from time to time."""
        result = super().transaction(work)
        self._transactions += 1
        idle = self._connection is not None and self._connection.info.transaction_status == TransactionStatus.IDLE
        if idle and self._connection is not None and self._transactions >= _TIDIED_EVERY:
            self._transactions = 0
            with suppress(psycopg.Error):  # the next transaction meets the same trouble, and says so
                self._connection.execute("VACUUM payload_parts, open_attempts")
        return result

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield the one connection: no other sees its tables."""
        if self._connection is None:
            raise psycopg.OperationalError("the connection was lost")
        yield self._connection

    # What the run would have stored, for whoever looks again

    def note_stored(self, bucket: str, stored: Mapping[str, StoredObject]) -> None:
        """Remember objects that a real run would have stored, by key."""
        insert = (
            "INSERT INTO stored_objects SELECT %s, one.* FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS one "
            "ON CONFLICT (bucket, key) DO UPDATE SET bytes = EXCLUDED.bytes, etag = EXCLUDED.etag"
        )
        sizes = number_array(one.size_bytes for one in stored.values())
        parameters = (bucket, list(stored), sizes, [one.etag for one in stored.values()])
        self.transaction(lambda connection: connection.execute(insert, parameters))

    def find_stored(self, bucket: str, key: str) -> StoredObject | None:
        """Return what a real run would have stored under a key; None when that is nothing."""
        query = "SELECT bytes, etag FROM stored_objects WHERE bucket = %s AND key = %s"
        row = self.transaction(lambda connection: connection.execute(query, (bucket, key)).fetchone())
        return StoredObject(*row) if row else None

    # How the findings would be, against how they are

    def states_now(self, ids: Sequence[int]) -> dict[int, FindingState]:
        """Return the state of these findings in the ledger; those that are not there are missing."""
        query = "SELECT id, state FROM findings WHERE id = ANY(%s::bigint[])"
        known = [one for one in ids if one < FIRST_NEW_ID]
        return dict(self._whole.transaction(lambda connection: connection.execute(query, (known,)).fetchall()))

    def count_closed(self) -> int:
        """Count the findings that are not closed in the ledger, and would be, since a window was taken."""
        query = (
            "SELECT count(*) FROM findings WHERE state = 'closed' AND id < %s AND closed_at > (SELECT at FROM taken)"
        )
        row = self.transaction(lambda connection: connection.execute(query, (FIRST_NEW_ID,)).fetchone())
        return int(row[0]) if row else 0


@contextmanager
def _writing(connection: Connection) -> Iterator[None]:
    """Open a transaction that may write and make tables, and reads everything as of one moment."""
    connection.read_only, connection.isolation_level = False, psycopg.IsolationLevel.REPEATABLE_READ
    try:
        with connection.transaction():
            yield
    finally:
        with suppress(psycopg.Error):  # it is lost then, and nothing else can be done with it
            connection.read_only = connection.isolation_level = None
