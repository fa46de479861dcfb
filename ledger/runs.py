"""The life of a run: it gets a window or is told why not, journals its pages, and ends once with its books."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from ledger import findings
from ledger.errors import BusyError, CorruptError, GuardError
from ledger.facts import BadRecord, Cause, Flow, PageFacts, RunCounts, RunOutcome
from ledger.instants import HOUR_S, Window, format_time
from ledger.leases import Tenure, check_fence
from ledger.store import Connection, Store, sql


@dataclass(frozen=True)
class RunRequest:
    """What a run sets out to do, frozen before it starts.

    Attributes:
        config: the settings it runs under, as JSON without secrets.
        holder: the machine and process, for a person who wonders who holds a window.
    """

    run_id: UUID
    pipeline: str
    window: Window
    flow: Flow
    page_size: int
    cause: Cause
    config: str
    holder: str
    lease: timedelta


def pipeline_id(connection: Connection, name: str) -> int:
    """Return the number of a pipeline, giving it one at its first use."""
    found = connection.execute("SELECT id FROM pipelines WHERE name = %s", (name,)).fetchone()
    if found is None:
        connection.execute("INSERT INTO pipelines (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,))
        found = connection.execute("SELECT id FROM pipelines WHERE name = %s", (name,)).fetchone()
    assert found is not None, "it was just inserted"
    return int(found[0])


def window_id(connection: Connection, pipeline: int, window: Window) -> int:
    """Return the number of a window's row, making the row at its first use."""
    query = "SELECT id FROM windows WHERE pipeline_id = %s AND start_s = %s"
    found = connection.execute(query, (pipeline, window.start_s)).fetchone()
    if found is None:
        insert = "INSERT INTO windows (pipeline_id, start_s) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        connection.execute(insert, (pipeline, window.start_s))
        found = connection.execute(query, (pipeline, window.start_s)).fetchone()
    assert found is not None, "it was just inserted"
    return int(found[0])


@dataclass(frozen=True)
class Started:
    """A run that got its window.

    Attributes:
        objects_checked: whether an earlier run has already made sure that the window had no objects before its first.
    """

    tenure: Tenure
    started_at: datetime
    objects_checked: bool


def start_run(store: Store, request: RunRequest) -> Started:
    """Write the run down and get its window, in one transaction; earlier runs that died are ended.

    Raises:
        BusyError: when another run holds the window; this one is recorded as busy.
        GuardError: when the window is held for a person; this one is recorded as held.
    """
    result = store.transaction(lambda connection: _start(connection, request))
    if isinstance(result, Started):
        return result
    raise result


def _start(connection: Connection, request: RunRequest) -> Started | BusyError | GuardError:
    pipeline = pipeline_id(connection, request.pipeline)
    window = window_id(connection, pipeline, request.window)
    parameters = {"window_id": window, "run_id": request.run_id, "lease": request.lease, "even_held": False}
    got = connection.execute(sql("acquire_lease"), parameters).fetchone()
    started_at = _insert_run(connection, request, window, got[0] if got else None)
    if got is None:
        return _refusal(connection, request, window)
    connection.execute(sql("abandon_runs"), parameters)
    tenure = Tenure(
        pipeline_id=pipeline,
        pipeline=request.pipeline,
        window=request.window,
        window_id=window,
        run_id=request.run_id,
        fence=got[0],
        lease=request.lease,
    )
    return Started(tenure, started_at, objects_checked=bool(got[1]))


def _insert_run(connection: Connection, request: RunRequest, window: int, fence: int | None) -> datetime:
    insert = (
        "INSERT INTO runs (id, window_id, fence, flow, page_size, cause, config, holder, started_at) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, ledger_now()) "
        "ON CONFLICT (id) DO UPDATE SET fence = EXCLUDED.fence, outcome = NULL, error = NULL, finished_at = NULL"
    )
    values = (request.run_id, window, fence, request.flow, request.page_size, request.cause, request.config)
    connection.execute(insert, (*values, request.holder))
    found = connection.execute("SELECT started_at FROM runs WHERE id = %s", (request.run_id,)).fetchone()
    assert found is not None, "it was just inserted"
    started_at: datetime = found[0]
    return started_at


def _refusal(connection: Connection, request: RunRequest, window: int) -> BusyError | GuardError:
    query = (
        "SELECT windows.held_reason, windows.lease_until, runs.holder FROM windows "
        "LEFT JOIN runs ON runs.id = windows.lease_run_id WHERE windows.id = %s"
    )
    found = connection.execute(query, (window,)).fetchone()
    assert found is not None, "the window's row exists"
    held_reason, lease_until, holder = found
    refusal: BusyError | GuardError
    if held_reason is not None:
        refusal, outcome = held(request.window, held_reason), "held"
    else:
        until = f" until {format_time(lease_until)} unless it renews" if lease_until else ""
        who = f" by {holder}" if holder else ""
        refusal = BusyError(f"window {request.window} is being worked on{who}{until}; try again later")
        outcome = "busy"
    end = "UPDATE runs SET outcome = %s, error = %s, finished_at = ledger_now() WHERE id = %s AND outcome IS NULL"
    connection.execute(end, (outcome, str(refusal), request.run_id))
    return refusal


def held(window: Window, reason: str) -> GuardError:
    """Return the error that says that a window waits for a person."""
    release = f"dispatch-ledger reconcile --window {window} --release-hold"
    return GuardError(f"window {window} is held: {reason}; when a person has looked, release it: {release}")


def note_objects_checked(store: Store, tenure: Tenure) -> None:
    """Remember that the window had no objects before its first run; safe to repeat."""

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        update = "UPDATE windows SET objects_checked_at = coalesce(objects_checked_at, ledger_now()) WHERE id = %s"
        connection.execute(update, (tenure.window_id,))

    store.transaction(work)


def hold_window(store: Store, tenure: Tenure, reason: str) -> None:
    """Hold the window for a person: no dispatch, repair or tagging until it is released; safe to repeat."""

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        update = "UPDATE windows SET held_at = coalesce(held_at, ledger_now()), held_reason = %s WHERE id = %s"
        connection.execute(update, (reason, tenure.window_id))

    store.transaction(work)


def journal_page(store: Store, tenure: Tenure, page: PageFacts, bad: list[BadRecord]) -> None:
    """Write one line of the read journal, and the page's unusable records as findings; safe to repeat."""
    store.transaction(lambda connection: write_page(connection, tenure, page, bad))


def write_page(connection: Connection, tenure: Tenure, page: PageFacts, bad: list[BadRecord]) -> None:
    """Do what `journal_page` does inside a transaction that has more to do."""
    check_fence(connection, tenure)
    insert = (
        "INSERT INTO pages (run_id, number, cursor_json, next_json, first_time, last_time, evaluated, outside, "
        "not_due, read_at, staged) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
    )
    connection.execute(insert, (tenure.run_id, *msgspec.structs.astuple(page)))
    findings.record_bad(connection, tenure, bad)


def finish_page(store: Store, tenure: Tenure, number: int) -> None:
    """Count a page as done, if nothing of its window is unfinished; safe to repeat."""
    parameters = {**tenure.key(), "number": number}
    store.transaction(lambda connection: connection.execute(sql("finish_page"), parameters))


def complete_run(store: Store, tenure: Tenure, counts: RunCounts) -> datetime:
    """Complete the run: only with the lease, only when nothing of its window is unfinished; gives the lease back.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        CorruptError: when something of the window is unfinished after all.
    """

    def work(connection: Connection) -> datetime:
        done = connection.execute(
            "SELECT finished_at FROM runs WHERE id = %s AND outcome = 'completed'", (tenure.run_id,)
        )
        before = done.fetchone()
        if before is not None:  # the answer to the first commit was lost
            return before[0]  # type: ignore[no-any-return]
        check_fence(connection, tenure)
        connection.execute(sql("close_disproved"), tenure.key())
        connection.execute("DELETE FROM staged_records WHERE run_id = %s", (tenure.run_id,))
        completed = connection.execute(sql("complete_run"), tenure.key() | msgspec.structs.asdict(counts)).fetchone()
        if completed is None:
            raise CorruptError(f"window {tenure.window} still has unfinished entries; run it again to finish them")
        return completed[0]  # type: ignore[no-any-return]

    return store.transaction(work)


def end_run(store: Store, tenure: Tenure, outcome: RunOutcome, error: str, counts: RunCounts) -> None:
    """End a run that did not complete, keep its books as far as they got, and give the lease back; safe to repeat."""

    def work(connection: Connection) -> None:
        parameters = {**tenure.key(), **msgspec.structs.asdict(counts), "outcome": outcome, "error": error}
        connection.execute(sql("end_run"), parameters)
        connection.execute(sql("release_lease"), parameters)

    store.transaction(work)


def owed_windows(store: Store, pipeline: str, catch_up: timedelta, not_before: datetime | None) -> list[Window]:
    """List the closed windows that no run has completed, oldest first, as far back as `catch_up` and `not_before`."""

    def work(connection: Connection) -> list[Window]:
        row = connection.execute("SELECT floor(extract(epoch FROM ledger_now()))::bigint").fetchone()
        assert row is not None, "a clock always answers"
        now_s = int(row[0])
        last_s = now_s // HOUR_S * HOUR_S - HOUR_S
        first_s = -(-(now_s - int(catch_up.total_seconds())) // HOUR_S) * HOUR_S
        if not_before is not None:
            first_s = max(first_s, -(-int(not_before.timestamp()) // HOUR_S) * HOUR_S)
        parameters = {"pipeline_id": pipeline_id(connection, pipeline), "first_s": first_s, "last_s": last_s}
        return [Window(start_s) for (start_s,) in connection.execute(sql("owed_windows"), parameters)]

    return store.transaction(work)


def has_ended(store: Store, window: Window) -> bool:
    """Say whether a window has ended, on the database's clock."""

    def work(connection: Connection) -> bool:
        row = connection.execute("SELECT extract(epoch FROM ledger_now()) >= %s", (window.end_s,)).fetchone()
        return bool(row and row[0])

    return store.transaction(work)
