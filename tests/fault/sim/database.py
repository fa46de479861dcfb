"""The real PostgreSQL under the simulation: its clock is the simulation's, and each transaction is a boundary."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import psycopg

from dispatch.aws import objects, pool
from ledger import clock, ids
from ledger.store import BoundedConnection, Store, connect_arguments
from tests.fault.sim.aws import SimObstore
from tests.fault.sim.boundaries import Boundaries
from tests.fault.sim.scheduler import LOCAL, Scheduler, SimThread

TABLES_KEPT = {"alembic_version", "ledger_identity"}
_TRUNCATE_EVERY = 25
_SET_TIME = "SELECT set_config('simulation.now', %s, false)"

# The ledger's clock is one function; what must never go back is watched by triggers, which only take notes.
_PREPARE = """
CREATE OR REPLACE FUNCTION ledger_now() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS $$SELECT current_setting('simulation.now')::timestamptz$$;
CREATE TABLE simulated_effects (
    idempotency_key text NOT NULL, record_id text NOT NULL, booked_for text NOT NULL, generation int NOT NULL
);
CREATE TABLE simulated_wrongs (what text NOT NULL);

CREATE FUNCTION note_wrong_window() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF new.fence < old.fence OR (new.lease_run_id IS DISTINCT FROM old.lease_run_id AND new.lease_run_id IS NOT NULL
                                 AND new.fence = old.fence) THEN
        INSERT INTO simulated_wrongs VALUES ('fence of a window went from ' || old.fence || ' to ' || new.fence);
    END IF;
    IF old.completed_at IS NOT NULL AND new.completed_at IS NULL THEN
        INSERT INTO simulated_wrongs VALUES ('a completed window is not completed any more');
    END IF;
    RETURN new;
END$$;
CREATE TRIGGER watch AFTER UPDATE ON windows FOR EACH ROW EXECUTE FUNCTION note_wrong_window();

CREATE FUNCTION note_wrong_entry() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF tg_op = 'DELETE' THEN
        INSERT INTO simulated_wrongs VALUES ('an entry was deleted');
        RETURN old;
    END IF;
    IF old.void_reason IS NOT NULL AND new.void_reason IS DISTINCT FROM old.void_reason
       OR (new.content_hash, new.idempotency_key, new.generation, new.records_n, new.run_id)
          IS DISTINCT FROM (old.content_hash, old.idempotency_key, old.generation, old.records_n, old.run_id)
       OR EXISTS (SELECT 1 FROM attempts WHERE entry_id = new.id AND outcome IN ('accepted', 'received')) THEN
        INSERT INTO simulated_wrongs VALUES ('an entry was changed that may not change any more');
    END IF;
    RETURN new;
END$$;
CREATE TRIGGER watch AFTER UPDATE OR DELETE ON entries FOR EACH ROW EXECUTE FUNCTION note_wrong_entry();

CREATE FUNCTION note_wrong_attempt() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF tg_op = 'DELETE' OR (new.outcome, new.message_id, new.number, new.fence, new.marked_at)
                           IS DISTINCT FROM (old.outcome, old.message_id, old.number, old.fence, old.marked_at) THEN
        INSERT INTO simulated_wrongs VALUES ('a proven attempt was ' || lower(tg_op) || 'd');
    END IF;
    RETURN coalesce(new, old);
END$$;
CREATE TRIGGER watch AFTER UPDATE OR DELETE ON attempts FOR EACH ROW EXECUTE FUNCTION note_wrong_attempt();

CREATE FUNCTION note_wrong_receipt() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF tg_op = 'DELETE' OR (old.state IN ('completed', 'superseded') AND new.state <> old.state)
       OR new.attempts < old.attempts THEN
        INSERT INTO simulated_wrongs VALUES ('a receipt went back from ' || old.state);
    END IF;
    RETURN coalesce(new, old);
END$$;
CREATE TRIGGER watch AFTER UPDATE OR DELETE ON receipts FOR EACH ROW EXECUTE FUNCTION note_wrong_receipt();

CREATE FUNCTION note_wrong_job() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF old.status IN ('completed', 'failed', 'cancelled') AND new.status <> old.status THEN
        INSERT INTO simulated_wrongs VALUES ('a job went from ' || old.status || ' to ' || new.status);
    END IF;
    RETURN new;
END$$;
CREATE TRIGGER watch AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION note_wrong_job();

CREATE FUNCTION note_wrong_plan() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF old.state IN ('applied', 'cancelled', 'stale') AND new.state <> old.state
       OR old.state = 'applying' AND new.state NOT IN ('applying', 'applied') THEN
        INSERT INTO simulated_wrongs VALUES ('a plan went from ' || old.state || ' to ' || new.state);
    END IF;
    RETURN new;
END$$;
CREATE TRIGGER watch AFTER UPDATE ON plans FOR EACH ROW EXECUTE FUNCTION note_wrong_plan();
"""


class Pooled(BoundedConnection):
    """A connection that goes back to the pool when it is closed, as a new one for whoever comes next."""

    parked = False
    home: "Database"

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.parked or super().closed

    def close(self) -> None:
        """Give it back; whatever was not committed is undone, as the server does for a client that is gone."""
        if not self.parked:
            self.parked = True
            self.home.take_back(self)

    def cursor(self, *args: Any, **named: Any) -> Any:
        """Make a cursor."""
        if self.parked:
            raise psycopg.OperationalError("the connection is closed")
        return super().cursor(*args, **named)


class Database:
    """The ledger's database, used for one history after another.

    Args:
        url: of a migrated database that nobody else uses.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._free: list[Pooled] = []
        self.plain = psycopg.connect(**connect_arguments(url), autocommit=True)
        self.plain.execute("SET timezone = 'UTC'")
        self.plain.execute(_PREPARE)
        ((database,),) = self.ask("SELECT current_database()")
        for setting in ("plan_cache_mode = force_generic_plan", "jit = off"):  # planning took half the server's time
            self.tell(f'ALTER DATABASE "{database}" SET {setting}')
        names = self.plain.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        self.tables = sorted(name for (name,) in names if name not in TABLES_KEPT)
        sequences = self.ask("SELECT sequencename FROM pg_sequences WHERE schemaname = 'public'")
        again = [f"ALTER SEQUENCE {name} RESTART" for (name,) in sequences]
        off, on = ("SET session_replication_role = replica", "SET session_replication_role = origin")
        self._delete = "; ".join([off, *(f"DELETE FROM {name}" for name in self.tables), *again, on])
        self._emptied = 0

    def close(self) -> None:
        """Close every connection."""
        for one in self._free:
            psycopg.Connection.close(one)
        self.plain.close()

    def empty(self) -> None:
        """Forget everything, and begin to count from one again."""
        if (
            self._emptied % _TRUNCATE_EVERY == 0
        ):  # which costs more than all the deletes, but leaves nothing dead behind
            self.plain.execute(f"TRUNCATE {', '.join(self.tables)} RESTART IDENTITY CASCADE")
        else:
            self.plain.execute(self._delete)
        self._emptied += 1

    def ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Ask the ledger, beside the product."""
        return self.plain.execute(query, parameters or None).fetchall()

    def tell(self, statement: str) -> None:
        """Change the ledger behind the product's back."""
        self.plain.execute(statement)

    def set_time(self, moment: str) -> None:
        """Say what time it is for whoever asks beside the product."""
        self.plain.execute(_SET_TIME, (moment,))

    def checkout(self, usual: Callable[[Store], Any], store: Store) -> Pooled:
        """Hand out a connection as the product makes it."""
        if self._free:
            used = self._free.pop()
            fresh = Pooled(used.pgconn)
            fresh._autocommit = True
            fresh._prepared = used._prepared
        else:
            with patch("ledger.store.BoundedConnection", Pooled):
                fresh = usual(store)
        fresh.prepare_threshold, fresh.home = 0, self
        return fresh

    def take_back(self, connection: Pooled) -> None:
        """Take a closed connection back, unless it is broken."""
        with suppress(psycopg.Error):
            if connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.pgconn.exec_(b"ROLLBACK")
            connection.pgconn.exec_(b"CLOSE ALL; DISCARD TEMP")
            if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                self._free.append(connection)
                return
        psycopg.Connection.close(connection)


class _Secrets:
    def __init__(self, scheduler: Scheduler) -> None:
        self.randbits = scheduler.random.getrandbits
        self.randbelow = scheduler.random.randrange


class _Threading:
    """What the product finds under the name `threading`, where it starts threads of its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Thread(self, target: Any, name: str, args: Any = (), daemon: bool = True) -> SimThread:  # noqa: N802, FBT001, FBT002
        """Make an actor of the same process."""
        del daemon
        return SimThread(self._scheduler, target, name, args)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


def _one_after_another(do: Callable[[Any], Any], pieces: Any, threads_max: int) -> list[Any]:
    del threads_max
    return [do(piece) for piece in pieces]


def _not_ahead(items: Iterator[Any]) -> Iterator[Any]:
    return items


@contextmanager
def simulated(scheduler: Scheduler, boundaries: Boundaries, database: Database) -> Iterator[None]:
    """Let the product live in the simulation: its clock, its randomness, its threads and its database."""
    from dispatch import working  # noqa: PLC0415
    from ledger import leases  # noqa: PLC0415
    from ops.jobs import worker  # noqa: PLC0415

    usual_connect, usual_transact = Store.connect, Store._transact

    def connect(store: Store) -> Any:
        scheduler.check_alive()
        connection = database.checkout(usual_connect, store)
        scheduler.actor.process.at_death.append(connection.close)
        connection.execute(_SET_TIME, (scheduler.now.isoformat(),))
        return connection

    def transact(store: Store, work: Callable[[Any], Any]) -> Any:
        return _transact(scheduler, boundaries, usual_transact, store, work)

    replaced: list[tuple[Any, str, Any]] = [
        (clock, "utc_now", lambda: scheduler.now),
        (clock, "monotonic_s", lambda: scheduler.now_s),
        (clock, "wait_s", lambda seconds, wake=None: scheduler.wait(seconds, wake)),
        (ids, "secrets", _Secrets(scheduler)),
        (objects, "obstore", SimObstore),
        (Store, "connect", connect),
        (Store, "_transact", transact),
        *((module, "threading", _Threading(scheduler)) for module in (leases, worker, working)),
        *_everywhere(pool.at_once, _one_after_another),
        *_everywhere(pool.one_ahead, _not_ahead),
    ]
    usual = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in usual:
            setattr(owner, name, value)


def _everywhere(usual: Any, value: Any) -> Iterator[tuple[Any, str, Any]]:
    """Name every module of the product that knows something by its own name."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in {"ledger", "dispatch", "reconcile", "ops"}:
            for here, known in list(vars(module).items()):
                if known is usual:
                    yield module, here, value


def _transact(
    scheduler: Scheduler, boundaries: Boundaries, usual: Callable[..., Any], store: Store, work: Callable[[Any], Any]
) -> Any:
    """Run one transaction, all of it in one turn; what goes wrong goes wrong right before or after its commit."""
    assert LOCAL.actor is not None, "only actors use the ledger"
    actor = LOCAL.actor
    fault = boundaries.arrive(f"COMMIT {getattr(work, '__qualname__', type(work).__name__)}")
    connection = store._connection
    if connection is None or connection.closed:
        connection = store._connection = store.connect()
    held, actor.keeps_turn = actor.keeps_turn, True

    def broken(open_connection: Any) -> None:
        work(open_connection)
        if fault == "crash_before":
            boundaries.crash()
        open_connection.close()
        raise psycopg.OperationalError("the connection was lost before the commit")

    changed = broken if fault in {"crash_before", "error_before"} else work
    try:
        done = usual(store, changed) if held else _in_transaction(connection, scheduler, changed)
    finally:
        actor.keeps_turn = held
    if fault == "crash_after":
        boundaries.crash()
    if fault in {"error_after", "late"}:
        store.close()
        raise psycopg.OperationalError("the answer to the commit was lost")
    return done


def _in_transaction(connection: Any, scheduler: Scheduler, work: Callable[[Any], Any]) -> Any:
    """Do what `Store._transact` does; the beginning tells the server the simulation's time, which saves a call."""
    connection.pgconn.exec_(f"BEGIN; SET simulation.now = '{scheduler.now.isoformat()}'".encode())
    try:
        done = work(connection)
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise
    connection.commit()
    return done
