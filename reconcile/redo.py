"""Sends again what was sent before, because a person wants it: planned, looked at, and applied once."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, islice
from operator import attrgetter
from uuid import UUID

import msgspec

from dispatch.dispatcher import Dispatcher, RunReport, run_document
from dispatch.emit import recover
from dispatch.feeders import Streamed, cut_batches
from dispatch.grouping import group_of, group_records
from dispatch.items import Item
from dispatch.judging import Rules, body_of, judge
from dispatch.run import Run
from ledger import evidence, outbox, plans, runs
from ledger.acknowledging import Note
from ledger.canonical import canonical_json, fingerprint, group_digest, plain_number, sha256
from ledger.documents import Document, one_snapshot
from ledger.errors import BusyError, DispatchLedgerError, GuardError, InputError
from ledger.facts import BadRecord, Group, Record
from ledger.gathering import (
    Gathered,
    InOrder,
    Promised,
    begin_gathering,
    count_groups,
    gather,
    iter_promised,
    supersede,
)
from ledger.holds import held
from ledger.ids import new_id
from ledger.instants import Window
from ledger.leases import raise_seq
from ledger.plans import LISTED_MAX, Amount, Plan, PlannedJob, Scope
from ledger.runs import Started
from ledger.store import Connection, Store
from reconcile.reconciler import Reconciler, WindowReport, report_document
from reconcile.rescan import Options


class _MovedError(GuardError):
    """What a plan has seen is not what there is."""


def scope_of_group(text: str, group_by: Sequence[str], called: str = "--group") -> str:
    """Return the digest of the group that a person names as JSON: an object by attribute, or an array in their order.

    Args:
        called: what the person calls it.

    Raises:
        InputError: when it is no JSON, or does not name each of the attributes once.
    """
    shape = f"""{called} takes JSON such as {{"{group_by[0]}": 1, …}} with {", ".join(group_by)}"""
    try:
        named = json.loads(
            text,
            parse_int=plain_number,
            parse_float=plain_number,
            parse_constant=plain_number,
            object_pairs_hook=_each_once,
        )
        values = named if isinstance(named, list) else [named.pop(name) for name in group_by]
        if len(values) != len(group_by) or (named and named is not values):
            raise InputError(f"{shape}; {text[:80]!r} names something else")
        return group_digest(values).hex()
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise InputError(f"{shape}; {text[:80]!r} is something else") from None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = dict(pairs)
    if len(named) != len(pairs):
        raise ValueError("a name is there twice")
    return named


def make_plan(dispatcher: Dispatcher, window: Window, scope: Scope, note: Note, plan_id: UUID | None = None) -> Plan:
    """Look at what would be sent again, and write it down as a plan; nothing is sent.

    A plan covers the occurrences claimed in the window which a consistent read shows still due there, unless the scope
    says otherwise. One that covers nothing is a plan too.

    Args:
        plan_id: which id it gets; with the id of a plan that is there already, that one is returned.

    Raises:
        InputError: when the window has not ended.
    """
    store, pipeline = dispatcher.store, dispatcher.settings.pipeline
    if not runs.has_ended(store, window):
        raise InputError(f"window {window} has not ended yet; it ends at {window.end_name}")
    chosen_id = plan_id or new_id()

    def work(connection: Connection) -> Plan:
        one_snapshot(connection)
        if not plans.has_plan(connection, chosen_id):
            seen = _look(connection, dispatcher, window, scope, dispatcher.cancellation.check)
            plans.add_plan(connection, pipeline, window, scope, note, seen.amount, chosen_id)
            plans.add_entries(connection, chosen_id, _listed(connection, dispatcher.rules(window)))
        return plans.read_plan(connection, pipeline, chosen_id)

    return store.transaction(work)


@dataclass
class Applied:
    """What came of applying a plan.

    Attributes:
        document: of `redo apply --json`.
        error: what kept it from being applied, or its window from being reconciled; None when all is done.
        open_findings: how many findings of the window are open after the reconcile; 0 for a repeat.
    """

    document: Document
    error: DispatchLedgerError | None = None
    busy: bool = False
    open_findings: int = 0


def apply_plan(dispatcher: Dispatcher, plan_id: UUID, by: str) -> Applied:
    """Send what a plan says, once however often this is called, and reconcile its window; a repeat finishes it.

    Raises:
        DispatchLedgerError: when there is no such plan.
        GuardError: when it has been cancelled, or is out of date already.
    """
    store, pipeline = dispatcher.store, dispatcher.settings.pipeline
    done = applied_before(store, pipeline, plan_id)
    if done is not None:
        return done
    plan = plans.load_plan(store, pipeline, plan_id)
    if plan.state != "applied":
        report = _send(dispatcher, plan, by)
        if report.error is not None:
            return _ended(store, pipeline, plan_id, report)
    options = Options(dispatcher.settings.reconcile, timedelta())
    reconciled = Reconciler(dispatcher, options).reconcile([plan.window])
    document = report_document(reconciled)
    (looked,) = reconciled.windows
    if looked.outcome in {"completed", "held"}:
        plans.keep_reconcile(store, plan_id, msgspec.json.encode(document))
    return _ended(store, pipeline, plan_id, looked=looked, reconcile=document)


def applied_before(store: Store, pipeline: str, plan_id: UUID) -> Applied | None:
    """Return what came of a plan that was applied to the end; None when there is still something to do.

    Raises:
        NotFoundError: when there is no such plan.
        GuardError: when it has been cancelled, or is out of date already.
    """
    plan = _require_alive(plans.load_plan(store, pipeline, plan_id))
    return None if plan.reconcile_json is None else _ended(store, pipeline, plan_id)


def _require_alive(plan: Plan) -> Plan:
    if plan.state == "cancelled":
        raise GuardError(f"plan {plan.id} was cancelled; make another one")
    if plan.state == "stale":
        raise GuardError(f"plan {plan.id} is out of date: {plan.stale_reason}; make another one")
    return plan


def require_applicable(store: Store, pipeline: str, plan_id: UUID) -> None:
    """Refuse a plan that could not be applied right now; one that somebody has begun can always be finished.

    Raises:
        NotFoundError: when there is no such plan.
        GuardError: when it has been cancelled, or is out of date, or its window is held.
        BusyError: when a run is working on its window.
    """
    plan = _require_alive(plans.load_plan(store, pipeline, plan_id))
    if plan.state != "planned":
        return
    facts = evidence.window_facts(store, pipeline, plan.window)
    if facts.held_reason is not None:
        raise held(plan.window, facts.held_reason, facts.held_kind)
    if facts.leased:
        raise BusyError(f"window {plan.window} is being worked on; try again later")


def _ended(
    store: Store,
    pipeline: str,
    plan_id: UUID,
    report: RunReport | None = None,
    looked: WindowReport | None = None,
    reconcile: Document | None = None,
) -> Applied:
    plan = plans.load_plan(store, pipeline, plan_id)
    document = plans.plan_document(store, plan)
    if report is None and plan.run_id is not None and plan.state == "applied":  # not when that was put back since
        report = RunReport(**runs.load_run(store, plan.run_id))
    document["run"] = None if report is None else run_document(report)
    kept = None if plan.reconcile_json is None else msgspec.Raw(plan.reconcile_json.encode())
    document["reconcile"] = reconcile if kept is None else kept
    if looked is None:
        return Applied(document, report.error if report else None)
    open_findings = sum(one["state"] == "open" for one in looked.findings)
    return Applied(document, looked.error, looked.busy, open_findings)


def _send(dispatcher: Dispatcher, plan: Plan, by: str) -> RunReport:
    """Open the plan's entries and bring them to their end, in one run."""

    def steps(run: Run, _started: Started) -> datetime:
        begun = _begin(dispatcher, run, plan, by)
        recover(run, count_as="confirmed" if begun else "recovered")
        completed: datetime = plans.complete_redo(run.store, run.tenure, run.counts, plan.id)
        return completed

    return dispatcher.run(dispatcher.request(plan.window, "redo"), steps)


def _begin(dispatcher: Dispatcher, run: Run, plan: Plan, by: str) -> bool:
    """Take the plan to applying: its entries are opened, and the jobs they replace superseded, all or nothing.

    Returns:
        False when that was done before, by a run that died.

    Raises:
        GuardError: when anything that the plan has seen has moved; it is stale then.
        BusyError: when a consumer is working right now on a job that would be replaced.
    """
    first: list[_Seen] = []

    def work(connection: Connection) -> _Seen | None:
        now = plans.read_plan(connection, dispatcher.settings.pipeline, plan.id)
        if now.state == "applying":  # begun by a run that died; or by this one, and the answer was lost
            return first[-1] if now.run_id == run.tenure.run_id else None
        seen = _look(connection, dispatcher, plan.window, plan.scope, run.checkpoint)
        if seen.amount.hash != plan.hash:
            raise _MovedError(_what_moved(plan, seen.amount))
        _require_sent(seen)
        seen.entries = _open_all(connection, run)
        replaced = supersede(connection, run.tenure, f"replaced by plan {plan.id}")
        if replaced.worked_since:
            raise _MovedError(f"{replaced.worked_since} of its records were worked in the meantime")
        if replaced.in_work:
            raise BusyError(
                f"a consumer is working on {replaced.in_work} of the jobs that plan {plan.id} replaces; wait until it "
                "has ended or its claim has run out, then apply again"
            )
        plans.begin_plan(connection, run.tenure, plan.id, by)
        if seen.entries:
            raise_seq(connection, run.tenure)
        first.append(seen)
        return seen

    try:
        seen = run.store.transaction(work)
    except _MovedError as reason:
        plans.mark_stale(run.store, plan.id, str(reason))
        raise GuardError(f"plan {plan.id} is out of date: {reason}; nothing was sent, make another one") from None
    if seen is not None:
        run.tenure.progress.seq += bool(seen.entries)
        seen.keep_books(run)
    return seen is not None


@dataclass
class _Seen:
    """What a look at a scope has found, and what it comes to."""

    amount: Amount
    evaluated: int = 0
    not_due: int = 0
    unusable: int = 0
    left_worked: int = 0
    unfinished: int = 0
    entries: int = 0

    def keep_books(self, run: Run) -> None:
        """Write into the run's books: what was left out as worked counts as claimed already."""
        counts = run.counts
        counts.evaluated, counts.not_due, counts.set_aside = self.evaluated, self.not_due, self.unusable
        counts.already_claimed, counts.claimed = self.left_worked, self.amount.records
        counts.due, counts.entries = self.left_worked + self.amount.records, self.entries
        run.progress()


def _look(
    connection: Connection, dispatcher: Dispatcher, window: Window, scope: Scope, pause: Callable[[], None]
) -> _Seen:
    """Read again what was promised in the scope, and gather what would be sent."""
    begin_gathering(connection)
    rules, pipeline = dispatcher.rules(window), runs.pipeline_id(connection, dispatcher.settings.pipeline)
    seen, whole = _Seen(Amount()), hashlib.sha256(_frame(dispatcher, window, scope))
    records = None if scope.whole or scope.groups else scope.records
    covers = _covering(scope)
    for chunk in iter_promised(connection, pipeline, window, records):
        pause()
        chosen = [one for one in chunk if covers(one)]
        items = dispatcher.partners.source.read_again([one.record_id for one in chosen])
        found = []
        for one in chosen:
            verdict = _judge_again(items.get(one.record_id), one, rules)
            whole.update(_line(one, verdict))
            gathered = _choose(one, verdict, scope, seen)
            if gathered is not None:
                found.append(gathered)
        gather(connection, found)
    seen.amount.hash, seen.amount.jobs = whole.digest(), count_groups(connection)
    return seen


def _frame(dispatcher: Dispatcher, window: Window, scope: Scope) -> bytes:
    """What a plan depends on beside what it reads: where things go, and how they are grouped."""
    settings = dispatcher.settings.model_dump(mode="json", include={"pipeline", "source", "objects", "routes"})
    return msgspec.json.encode([window.name, scope, settings], order="sorted")


def _covering(scope: Scope) -> Callable[[Promised], bool]:
    """Return what a scope covers. On the hour, where two windows meet, a record is the window's that has sent it.

    So no plan of a window takes one record out of a neighbour's job, which would stay and send it once more; it does
    when the record is named, since whoever names it wants just that.
    """
    groups, records = {bytes.fromhex(one) for one in scope.groups}, set(scope.records)
    return lambda one: one.record_id in records or (one.here and (scope.whole or one.group_digest in groups))


@dataclass(frozen=True)
class _Verdict:
    """What the base table says now of an occurrence that was promised.

    Attributes:
        name: `due`, `not_due` (still booked for then, with another status), `moved`, `unusable` or `gone`.
        record: as it would be sent; None when it cannot be.
    """

    name: str
    record: Record | None = None


def _judge_again(item: Item | None, one: Promised, rules: Rules) -> _Verdict:
    if item is None:
        return _Verdict("gone")
    forced = judge({**item, rules.status_attribute: {"S": rules.due_status}}, rules)
    if not isinstance(forced, Record):
        return _Verdict("unusable" if isinstance(forced, BadRecord) else "moved")
    if forced.occurrence != one.occurrence:
        return _Verdict("moved")
    if item.get(rules.status_attribute) == {"S": rules.due_status}:
        return _Verdict("due", forced)
    body = body_of(item)
    mark = fingerprint(body, rules.updated_at_attribute)
    return _Verdict("not_due", msgspec.structs.replace(forced, body=body, fingerprint=mark))


def _line(one: Promised, verdict: _Verdict) -> bytes:
    digest = None if verdict.record is None else sha256(verdict.record.body).hex()
    known = [
        one.booking_ns,
        one.record_id,
        one.generation,
        str(one.entry_id),
        one.unfinished,
        one.receipts,
        one.forgotten,
    ]
    return canonical_json([*known, verdict.name, digest]) + b"\n"


def _choose(one: Promised, verdict: _Verdict, scope: Scope, seen: _Seen) -> Gathered | None:
    """Count an occurrence, and say whether it is sent again, no longer due (without a record), or just left (None)."""
    seen.evaluated += 1
    seen.unfinished += one.unfinished
    seen.amount.already_worked += one.worked
    due = verdict.name == "due"
    seen.amount.no_longer_due += not due and verdict.name != "unusable"
    if not due and not (scope.include_not_due and verdict.record is not None):
        seen.unusable += verdict.name == "unusable"
        seen.not_due += verdict.name != "unusable"
        return Gathered(one, None)
    if one.worked and not scope.include_worked:
        seen.left_worked += 1
        return None
    seen.amount.records += 1
    return Gathered(one, verdict.record)


def _what_moved(plan: Plan, now: Amount) -> str:
    names = ("jobs", "records", "already_worked", "no_longer_due")
    moved = [
        f"{name.replace('_', ' ')} {getattr(plan, name)} then, {getattr(now, name)} now"
        for name in names
        if getattr(plan, name) != getattr(now, name)
    ]
    return ", ".join(moved) or "a record, a claim or a receipt that it has seen has changed"


def _require_sent(seen: _Seen) -> None:
    """Refuse to repeat what is still on its way; to finish it first would change what the plan has seen."""
    if seen.unfinished:
        raise _MovedError(f"{seen.unfinished} of its records are in jobs that are not sent yet, so finish those first")


def _open_all(connection: Connection, run: Run) -> int:
    """Claim everything anew and open the entries; returns how many.

    Raises:
        _MovedError: when another plan has claimed one of the records.
    """
    ordered, entries = InOrder(connection), 0
    for batch in cut_batches(ordered.records(), ordered.of_group):
        run.checkpoint()
        if isinstance(batch, Streamed):
            generation = ordered.generations.pop(batch.first.group_key)
            _open_streamed(connection, run, batch, generation)
            entries += 1
            continue
        groups = group_records(batch, run.rules)
        for generation, same in _by_generation(groups, ordered):
            opened = outbox.open_in(
                connection, run.tenure, [new_id() for _ in same], same, run.destinations, generation
            )
            _require_all(opened.claimed, sum(len(group.records) for group in same))
            entries += len(opened.entries)
    return entries


def _by_generation(groups: Sequence[Group], ordered: InOrder) -> Iterator[tuple[int, list[Group]]]:
    numbered = [(ordered.generations.pop(group.records[0].group_key), group) for group in groups]
    numbered.sort(key=lambda one: one[0])
    for generation, members in groupby(numbered, key=lambda one: one[0]):
        yield generation, [group for _, group in members]


def _open_streamed(connection: Connection, run: Run, streamed: Streamed, generation: int) -> None:
    group, wanted = group_of([streamed.first], run.rules), 0

    def chunks() -> Iterator[list[Record]]:
        nonlocal wanted
        for chunk in streamed.chunks():
            run.checkpoint()
            wanted += len(chunk)
            yield chunk

    entry = outbox.open_chunks_in(connection, run.tenure, new_id(), group, chunks(), run.destinations, generation)
    _require_all(entry.records_n if entry else 0, wanted)


def _require_all(claimed: int, wanted: int) -> None:
    if claimed != wanted:
        raise _MovedError(f"{wanted - claimed} of its records were claimed again by another plan")


def _listed(connection: Connection, rules: Rules) -> Iterator[PlannedJob]:
    """Yield the jobs of a plan as far as they are listed; a group larger than that is cut off."""
    ordered, listed = InOrder(connection), 0
    for _, members in groupby(ordered.records(), key=attrgetter("group_key")):
        first = next(members)
        ids = [first.record_id, *(one.record_id for one in islice(members, LISTED_MAX - listed - 1))]
        listed += len(ids)
        group = group_of([first], rules)
        yield PlannedJob(group.values_json, ordered.generations.pop(first.group_key), ids)
        if listed == LISTED_MAX:
            return
