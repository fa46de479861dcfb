"""The life of a run: it gets a window or is told why not, journals its pages, and ends once with its books."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from ledger import clock, findings
from ledger.documents import rows
from ledger.errors import BusyError, CorruptError, DispatchLedgerError, GuardError
from ledger.facts import BadRecord, Cause, Flow, PageFacts, RunCounts, RunOutcome
from ledger.holds import held
from ledger.instants import HOUR_S, Window, format_time
from ledger.leases import Progress, Tenure, check_fence, check_seq
from ledger.store import Connection, Store, sql


class NotOwedError(DispatchLedgerError):
    """Another run has completed the window since it was listed as owed."""


@dataclass(frozen=True)
class RunRequest:
    """What a run sets out to do, frozen before it starts.

    Attributes:
        config: the settings it runs under, as JSON without secrets.
        holder: the machine and process, for a person who wonders who holds a window.
        only_owed: leave the window alone when a run has completed it in the meantime.
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
    only_owed: bool = False


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
        asked_s: when the lease was asked for, on this machine's monotonic clock, in seconds.
    """

    tenure: Tenure
    started_at: datetime
    objects_checked: bool
    asked_s: float


def start_run(store: Store, request: RunRequest, *, even_held: bool = False) -> Started:
    """Write the run down and get its window, in one transaction; earlier runs that died are ended.

    Args:
        even_held: take the window also while it is held for a person: for what sends nothing.

    Raises:
        BusyError: when another run holds the window; this one is recorded as busy.
        NotOwedError: when only an owed window was wanted, and this one has been completed; nothing is recorded.
        GuardError: when the window is held for a person; this one is recorded as held.
    """
    result = store.transaction(lambda connection: _start(connection, request, even_held=even_held))
    if isinstance(result, Started):
        return result
    raise result


def _start(connection: Connection, request: RunRequest, *, even_held: bool) -> Started | BusyError | GuardError:
    pipeline = pipeline_id(connection, request.pipeline)
    window = window_id(connection, pipeline, request.window)
    parameters = {"window_id": window, "run_id": request.run_id, "lease": request.lease, "even_held": even_held}
    parameters["only_owed"] = request.only_owed
    connection.execute("SELECT 1 FROM windows WHERE id = %s FOR NO KEY UPDATE", (window,))
    asked_s = clock.monotonic_s()
    got = connection.execute(sql("acquire_lease"), parameters).fetchone()
    if got is None and request.only_owed and _is_completed(connection, window):
        raise NotOwedError(f"window {request.window} was completed by another run")
    started_at = _insert_run(connection, request, window, got[0] if got else None)
    if got is None:
        return _refusal(connection, request, window, even_held=even_held)
    connection.execute(sql("abandon_runs"), parameters)
    tenure = Tenure(
        pipeline_id=pipeline,
        pipeline=request.pipeline,
        window=request.window,
        window_id=window,
        run_id=request.run_id,
        fence=got[0],
        lease=request.lease,
        even_held=even_held,
        progress=Progress(got[2]),
    )
    return Started(tenure, started_at, objects_checked=bool(got[1]), asked_s=asked_s)


def _is_completed(connection: Connection, window: int) -> bool:
    row = connection.execute("SELECT completed_at IS NOT NULL FROM windows WHERE id = %s", (window,)).fetchone()
    return bool(row and row[0])


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


def _refusal(connection: Connection, request: RunRequest, window: int, *, even_held: bool) -> BusyError | GuardError:
    query = (
        "SELECT windows.held_reason, windows.held_kind, windows.lease_until, runs.holder FROM windows "
        "LEFT JOIN runs ON runs.id = windows.lease_run_id WHERE windows.id = %s"
    )
    found = connection.execute(query, (window,)).fetchone()
    assert found is not None, "the window's row exists"
    held_reason, held_kind, lease_until, holder = found
    refusal: BusyError | GuardError
    if held_reason is not None and not even_held:
        refusal, outcome = held(request.window, held_reason, held_kind), "held"
    else:
        until = f" until {format_time(lease_until)} unless it renews" if lease_until else ""
        who = f" by {holder}" if holder else ""
        refusal = BusyError(f"window {request.window} is being worked on{who}{until}; try again later")
        outcome = "busy"
    end = "UPDATE runs SET outcome = %s, error = %s, finished_at = ledger_now() WHERE id = %s AND outcome IS NULL"
    connection.execute(end, (outcome, str(refusal), request.run_id))
    return refusal


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


def keep_books(connection: Connection, tenure: Tenure, counts: RunCounts) -> None:
    """Write a run's books, in the transaction that ends it."""
    connection.execute(sql("keep_books"), tenure.key() | msgspec.structs.asdict(counts))


def completed_before(connection: Connection, tenure: Tenure) -> datetime | None:
    """Return when this run was completed, in case the answer to its first commit was lost."""
    query = "SELECT finished_at FROM runs WHERE id = %s AND outcome = 'completed'"
    row = connection.execute(query, (tenure.run_id,)).fetchone()
    return row[0] if row else None


def complete_run(store: Store, tenure: Tenure, counts: RunCounts) -> datetime:
    """Complete the run: only with the lease, only when nothing of its window is unfinished; gives the lease back.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        PutBackError: when the ledger was put back to an earlier state since; it has forgotten what this run has opened.
        CorruptError: when something of the window is unfinished after all.
    """

    def work(connection: Connection) -> datetime:
        if (before := completed_before(connection, tenure)) is not None:
            return before
        check_fence(connection, tenure)
        check_seq(connection, tenure)
        connection.execute(sql("close_disproved"), tenure.key())
        connection.execute("DELETE FROM staged_records WHERE run_id = %s", (tenure.run_id,))
        keep_books(connection, tenure, counts)
        completed = connection.execute(sql("complete_run"), tenure.key()).fetchone()
        if completed is None:
            raise CorruptError(f"window {tenure.window} still has unfinished entries; run it again to finish them")
        return completed[0]  # type: ignore[no-any-return]

    return store.transaction(work)


def complete_reconcile(store: Store, tenure: Tenure, counts: RunCounts, unless: list[str]) -> datetime:
    """Complete a reconcile: what it did not see again is closed, what it verified is kept, the lease is given back.

    Args:
        unless: kinds of findings that it did not look at, and so does not close.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        PutBackError: when the ledger was put back to an earlier state since.
    """

    def work(connection: Connection) -> datetime:
        if (before := completed_before(connection, tenure)) is not None:
            return before
        check_fence(connection, tenure)
        check_seq(connection, tenure)
        connection.execute(sql("close_unseen"), tenure.key() | {"unless": unless})
        keep_books(connection, tenure, counts)
        ended = connection.execute(sql("complete_reconcile"), tenure.key() | msgspec.structs.asdict(counts)).fetchone()
        assert ended is not None, "the fence was just checked"
        return ended[0]  # type: ignore[no-any-return]

    return store.transaction(work)


def end_adoption(store: Store, tenure: Tenure, counts: RunCounts) -> None:
    """End a run that adopted objects: it verified nothing, and gives its window back; safe to repeat."""

    def work(connection: Connection) -> None:
        update = (
            "UPDATE runs SET outcome = 'completed', finished_at = ledger_now(), entries = %s "
            "WHERE id = %s AND outcome IS NULL"
        )
        connection.execute(update, (counts.entries, tenure.run_id))
        connection.execute(sql("release_lease"), tenure.key())

    store.transaction(work)


def end_run(store: Store, tenure: Tenure, outcome: RunOutcome, error: str, counts: RunCounts) -> None:
    """End a run that did not complete, keep its books as far as they got, and give the lease back; safe to repeat."""

    def work(connection: Connection) -> None:
        keep_books(connection, tenure, counts)
        connection.execute(sql("end_run"), {**tenure.key(), "outcome": outcome, "error": error})
        connection.execute(sql("release_lease"), tenure.key())

    store.transaction(work)


def load_run(store: Store, run_id: UUID) -> dict[str, Any]:
    """Return a run that has ended, by the names of what a report of it holds; its books as `counts`.

    Raises:
        DispatchLedgerError: when there is no such run.
    """
    query = (
        "SELECT runs.*, windows.start_s, pipelines.name AS pipeline FROM runs "
        "JOIN windows ON windows.id = runs.window_id JOIN pipelines ON pipelines.id = windows.pipeline_id "
        "WHERE runs.id = %(id)s"
    )
    found = store.transaction(lambda connection: rows(connection, query, {"id": run_id}))
    if not found:
        raise DispatchLedgerError(f"no run {run_id} in the ledger")
    kept = ("pipeline", "flow", "page_size", "cause", "outcome", "started_at", "finished_at")
    counts = RunCounts(**{name: found[0][name] for name in RunCounts.__struct_fields__})
    facts = {name: found[0][name] for name in kept}
    return facts | {"run_id": run_id, "window": Window(found[0]["start_s"]), "counts": counts}


def owed_windows(store: Store, pipeline: str, catch_up: timedelta, not_before: datetime | None) -> list[Window]:
    """List the closed windows that no run has completed, oldest first, as far back as `catch_up` and `not_before`."""
    return store.transaction(lambda connection: owed_in(connection, pipeline, catch_up, not_before))


def owed_in(connection: Connection, pipeline: str, catch_up: timedelta, not_before: datetime | None) -> list[Window]:
    """Do what `owed_windows` does inside a transaction that has more to do."""
    first_s, last_s = _closed_range(connection, catch_up, not_before)
    parameters = {"pipeline_id": pipeline_id(connection, pipeline), "first_s": first_s, "last_s": last_s}
    return [Window(start_s) for (start_s,) in connection.execute(sql("owed_windows"), parameters)]


def closed_windows(store: Store, lookback: timedelta, not_before: datetime | None) -> list[Window]:
    """List the windows that have ended, oldest first, as far back as `lookback` and `not_before`."""

    def work(connection: Connection) -> list[Window]:
        first_s, last_s = _closed_range(connection, lookback, not_before)
        return [Window(start_s) for start_s in range(first_s, last_s + 1, HOUR_S)]

    return store.transaction(work)


def _closed_range(connection: Connection, back: timedelta, not_before: datetime | None) -> tuple[int, int]:
    """Return the starts of the first and last closed window within bounds; first > last when there is none."""
    row = connection.execute("SELECT floor(extract(epoch FROM ledger_now()))::bigint").fetchone()
    assert row is not None, "a clock always answers"
    now_s = int(row[0])
    first_s = -(-(now_s - int(back.total_seconds())) // HOUR_S) * HOUR_S
    if not_before is not None:
        first_s = max(first_s, -(-int(not_before.timestamp()) // HOUR_S) * HOUR_S)
    return first_s, now_s // HOUR_S * HOUR_S - HOUR_S


def has_ended(store: Store, window: Window, ago: timedelta = timedelta()) -> bool:
    """Say whether a window has ended, at least so long ago, on the database's clock."""

    def work(connection: Connection) -> bool:
        query = "SELECT extract(epoch FROM ledger_now() - %s::interval) >= %s"
        row = connection.execute(query, (ago, window.end_s)).fetchone()
        return bool(row and row[0])

    return store.transaction(work)
