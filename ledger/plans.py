"""Plans of a redo: made, looked at, applied once or not at all, and kept with who and why."""

from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import Any, Literal
from uuid import UUID

import msgspec

from ledger.acknowledging import Note
from ledger.canonical import canonical_json, packed_id, unpacked_id
from ledger.documents import Document, Row, plain, rows
from ledger.errors import CorruptError, GuardError, InputError, NotFoundError
from ledger.facts import RunCounts
from ledger.instants import Window, format_s
from ledger.leases import Tenure, check_fence, check_seq
from ledger.runs import completed_before, keep_books, pipeline_id, window_id
from ledger.store import Connection, Store, byte_array, sql

PlanState = Literal["planned", "applying", "applied", "cancelled", "stale"]
# So many records of a plan are listed by their ids; all of them are counted.
LISTED_MAX = 10_000
_WRITTEN_AT_ONCE = 1000
_PLANS = (
    "SELECT plans.*, windows.start_s FROM plans JOIN windows ON windows.id = plans.window_id "
    "JOIN pipelines ON pipelines.id = windows.pipeline_id WHERE pipelines.name = %(pipeline)s "
)


class Scope(msgspec.Struct, frozen=True):
    """What of a window a redo covers; everything when neither groups nor records are named.

    Attributes:
        groups: group digests, hexadecimal.
        records: record ids. Groups and records add up.
        include_not_due, include_worked: also what is no longer due, or was worked to its end already.
    """

    groups: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    include_not_due: bool = False
    include_worked: bool = False

    @property
    def whole(self) -> bool:
        """Whether the whole window is covered."""
        return not self.groups and not self.records


class Plan(msgspec.Struct, frozen=True):
    """A plan as the ledger keeps it.

    Attributes:
        hash: of everything that was looked at when it was made.
        run_id: the run that applies it, or has applied it.
        reconcile_json: the document of the reconcile that followed; None while there was none.
    """

    id: UUID
    window: Window
    state: PlanState
    scope: Scope
    reason: str
    planned_by: str
    hash: bytes
    jobs: int
    records: int
    already_worked: int
    no_longer_due: int
    run_id: UUID | None
    applied_by: str | None
    stale_reason: str | None
    reconcile_json: str | None


class Amount(msgspec.Struct):
    """What a plan comes to, and the hash of what was looked at."""

    hash: bytes = b""
    jobs: int = 0
    records: int = 0
    already_worked: int = 0
    no_longer_due: int = 0


class PlannedJob(msgspec.Struct, frozen=True):
    """One job of a plan: its group as canonical JSON, and its records in payload order."""

    group_json: bytes
    generation: int
    record_ids: Sequence[str]


def parse_plan_id(text: str) -> UUID:
    """Read a plan's id.

    Raises:
        InputError: when it is none.
    """
    try:
        return UUID(text)
    except ValueError:
        raise InputError(f"{text[:80]!r} is no plan id; it is the plan_id that redo plan gave, a UUID") from None


def add_plan(
    connection: Connection, pipeline: str, window: Window, scope: Scope, note: Note, amount: Amount, plan_id: UUID
) -> None:
    """Write a plan down, in the transaction that looked at what it covers."""
    insert = (
        "INSERT INTO plans (id, window_id, state, scope, reason, planned_by, planned_at, hash, jobs, records, "
        "already_worked, no_longer_due) VALUES (%s, %s, 'planned', %s, %s, %s, ledger_now(), %s, %s, %s, %s, %s)"
    )
    place = window_id(connection, pipeline_id(connection, pipeline), window)
    text = canonical_json(msgspec.to_builtins(scope)).decode()
    connection.execute(insert, (plan_id, place, text, note.reason, note.by, *msgspec.structs.astuple(amount)))


def add_entries(connection: Connection, plan_id: UUID, jobs: Iterable[PlannedJob]) -> None:
    """Write down the jobs of a plan, for a person to look at."""
    copy_from = "COPY plan_entries (plan_id, number, generation, group_json, record_ids) FROM STDIN"
    waiting, number = iter(jobs), count(1)
    while chunk := list(islice(waiting, _WRITTEN_AT_ONCE)):  # the jobs are read on the same connection
        with connection.cursor() as cursor, cursor.copy(copy_from) as copy:
            for one in chunk:
                ids = byte_array(map(packed_id, one.record_ids))
                copy.write_row((plan_id, next(number), one.generation, one.group_json.decode(), ids))


def has_plan(connection: Connection, plan_id: UUID) -> bool:
    """Say whether a plan has been written down."""
    return connection.execute("SELECT 1 FROM plans WHERE id = %s", (plan_id,)).fetchone() is not None


def load_plan(store: Store, pipeline: str, plan_id: UUID) -> Plan:
    """Return a plan.

    Raises:
        NotFoundError: when the pipeline has no such plan.
    """
    return store.transaction(lambda connection: read_plan(connection, pipeline, plan_id))


def read_plan(connection: Connection, pipeline: str, plan_id: UUID) -> Plan:
    """Do what `load_plan` does inside a transaction that has more to do."""
    found = rows(connection, _PLANS + "AND plans.id = %(id)s", {"pipeline": pipeline, "id": plan_id})
    if not found:
        raise NotFoundError(f"no plan {plan_id} in the ledger of pipeline {pipeline}; see: dispatch-ledger show window")
    return _plan(found[0])


def _plan(row: Row) -> Plan:
    known = {name: row[name] for name in Plan.__struct_fields__ if name in row}
    scope = msgspec.json.decode(row["scope"], type=Scope)
    return Plan(**known | {"window": Window(row["start_s"]), "scope": scope})


def begin_plan(connection: Connection, tenure: Tenure, plan_id: UUID, by: str) -> None:
    """Take a plan from planned to applying, in the transaction that opened its entries; then it can only be finished.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        GuardError: when somebody has cancelled it in the meantime.
    """
    check_fence(connection, tenure)
    update = (
        "UPDATE plans SET state = 'applying', run_id = %s, applied_by = %s, applying_at = ledger_now() "
        "WHERE id = %s AND state = 'planned'"
    )
    if connection.execute(update, (tenure.run_id, by, plan_id)).rowcount == 0:
        raise GuardError(f"plan {plan_id} was cancelled in the meantime; nothing was sent")


def mark_stale(store: Store, plan_id: UUID, reason: str) -> None:
    """Mark a plan that can no longer be applied as stale; safe to repeat."""
    update = (
        "UPDATE plans SET state = 'stale', stale_reason = %s, ended_at = ledger_now() "
        "WHERE id = %s AND state = 'planned'"
    )
    store.transaction(lambda connection: connection.execute(update, (reason, plan_id)))


def cancel_plan(store: Store, pipeline: str, plan_id: UUID) -> Plan:
    """Cancel a plan that nobody has begun to apply; safe to repeat.

    Raises:
        NotFoundError: when the pipeline has no such plan.
        GuardError: when it is being applied, or ended another way.
    """
    update = "UPDATE plans SET state = 'cancelled', ended_at = ledger_now() WHERE id = %s AND state = 'planned'"

    def work(connection: Connection) -> Plan:
        read_plan(connection, pipeline, plan_id)
        connection.execute(update, (plan_id,))
        return read_plan(connection, pipeline, plan_id)

    plan = store.transaction(work)
    if plan.state == "applying":
        raise GuardError(
            f"plan {plan_id} is being applied and can only be finished: dispatch-ledger redo apply {plan_id}"
        )
    if plan.state != "cancelled":
        raise GuardError(f"plan {plan_id} is {plan.state} already; there is nothing to cancel")
    return plan


def complete_redo(store: Store, tenure: Tenure, counts: RunCounts, plan_id: UUID) -> Any:
    """Complete a run that applied a plan: only with the lease, only when nothing of its window is unfinished.

    Returns:
        When it was completed, on the database's clock.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        PutBackError: when the ledger was put back to an earlier state since; it has forgotten what was opened.
        CorruptError: when something of the window is unfinished after all.
    """

    def work(connection: Connection) -> Any:
        if (before := completed_before(connection, tenure)) is not None:
            return before
        check_fence(connection, tenure)
        check_seq(connection, tenure)
        keep_books(connection, tenure, counts)
        completed = connection.execute(sql("complete_redo"), tenure.key() | {"plan_id": plan_id}).fetchone()
        if completed is None:
            raise CorruptError(f"window {tenure.window} still has unfinished entries; apply the plan again")
        return completed[0]

    return store.transaction(work)


def keep_reconcile(store: Store, plan_id: UUID, document: bytes) -> None:
    """Keep the document of the reconcile that followed; the first one stays."""
    update = "UPDATE plans SET reconcile_json = coalesce(reconcile_json, %s) WHERE id = %s"
    store.transaction(lambda connection: connection.execute(update, (document.decode(), plan_id)))


def plan_document(store: Store, plan: Plan) -> Document:
    """Return a plan as the document of `redo … --json`; up to `LISTED_MAX` of its records are listed."""
    query = "SELECT * FROM plan_entries WHERE plan_id = %(id)s ORDER BY number"
    entries = store.transaction(lambda connection: rows(connection, query, {"id": plan.id}))
    return {
        "plan_id": str(plan.id),
        "window": plan.window.name,
        "reason": plan.reason,
        "by": plan.planned_by,
        "state": plan.state,
        "hash": plan.hash.hex(),
        "jobs": plan.jobs,
        "records": plan.records,
        "already_worked": plan.already_worked,
        "no_longer_due": plan.no_longer_due,
        "entries": [
            {
                "group": msgspec.Raw(one["group_json"].encode()),
                "records": [unpacked_id(raw) for raw in one["record_ids"]],
                "generation": one["generation"],
            }
            for one in entries
        ],
        "applied_by": plan.applied_by,
        "stale_reason": plan.stale_reason,
    }


def plans_of_window(connection: Connection, parameters: Row) -> list[Row]:
    """Return the plans of a window, oldest first, for its story."""
    return rows(connection, _PLANS + "AND plans.window_id = %(window_id)s ORDER BY plans.planned_at", parameters)


def plan_facts(row: Row) -> Row:
    """Return a row of `plans_of_window` as its story shows it, without its entries."""
    names = ("state", "reason", "jobs", "records", "already_worked", "no_longer_due", "applied_by", "stale_reason")
    times = ("planned_at", "applying_at", "ended_at")
    shown = {name: plain(row[name]) for name in (*names, *times)}
    return {"plan_id": str(row["id"]), "window": format_s(row["start_s"]), "by": row["planned_by"]} | shown
