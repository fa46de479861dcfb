"""Goes back to the source, window by window: what was promised, what is true, and what mends the difference."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from dispatch.dispatcher import Dispatcher, outcome_of
from dispatch.run import Run
from dispatch.witnesses import enter
from ledger import evidence, findings, history, runs
from ledger.acknowledging import Note
from ledger.canonical import utf8
from ledger.errors import BusyError, CancelledError, CorruptError, DispatchLedgerError, GuardError, InputError
from ledger.evidence import WindowFacts
from ledger.facts import RunCounts, RunOutcome
from ledger.findings import Seen
from ledger.holds import held, not_released
from ledger.ids import new_id
from ledger.instants import Window
from ledger.store import Store
from reconcile.coverage import compare_source, note_missed, redispatch_missed, settle_missed
from reconcile.duplicates import look_at_duplicates
from reconcile.objects import compare_objects
from reconcile.overdue import look_at_overdue
from reconcile.rescan import Options, Rescan
from reconcile.unfinished import finish_unfinished

LOG = structlog.get_logger(__name__)
FINDINGS_MAX = 10_000


@dataclass
class WindowReport:
    """What came of the reconcile of one window.

    Attributes:
        outcome: how it ended; None for a window that was left alone.
        left_alone: why it was not looked at; None when it was.
        late: differences that are too young to be called one.
        busy: whether another run was working on it.
        findings: those that are open, and those that this reconcile has seen or repaired, as documents.
        would_close: in a dry run, how many findings would be closed; else None.
    """

    window: Window
    run_id: UUID | None = None
    outcome: RunOutcome | None = None
    left_alone: str | None = None
    held: str | None = None
    late: int = 0
    counts: RunCounts = field(default_factory=RunCounts)
    findings: list[dict[str, Any]] = field(default_factory=list)
    error: DispatchLedgerError | None = None
    busy: bool = False
    would_close: int | None = None


@dataclass
class Report:
    """What came of a reconcile of several windows.

    Attributes:
        dry_run: whether it says what a reconcile would do, and there was none.
    """

    run_id: UUID
    windows: list[WindowReport] = field(default_factory=list)
    dry_run: bool = False

    def count(self, state: str) -> int:
        """Count the listed findings in one state."""
        return sum(one["state"] == state for window in self.windows for one in window.findings)

    @property
    def would_repair(self) -> int:
        """How many findings a reconcile would repair, of a dry run."""
        return sum(one.get("would_repair") is not None for window in self.windows for one in window.findings)

    @property
    def would_close(self) -> int:
        """How many findings a reconcile would close, of a dry run."""
        return sum(window.would_close or 0 for window in self.windows)


@dataclass
class Reconciler:
    """Reconciles windows, one after another, with the partners of a dispatcher, under one configuration."""

    dispatcher: Dispatcher
    options: Options

    def reconcile(self, windows: Iterable[Window], *, release: Note | None = None) -> Report:
        """Reconcile windows in the order given; one that fails does not keep the others from being looked at.

        The report bears the id of the first window's run.

        Args:
            release: who lets those that are held go on, and why.
        """
        report = Report(new_id())
        run_id = report.run_id
        for window in windows:
            report.windows.append(self.reconcile_window(window, release=release, run_id=run_id))
            run_id = new_id()
            if isinstance(report.windows[-1].error, CancelledError):
                break
        return report

    def reconcile_window(
        self, window: Window, *, release: Note | None = None, run_id: UUID | None = None
    ) -> WindowReport:
        """Reconcile one window; a failure is in the report, not raised.

        Args:
            release: who has looked at a held window and lets it go on, without the guard, and why.
        """
        report = WindowReport(window)
        try:
            self.dispatcher.cancellation.check()
            self._look(report, release, run_id or new_id())
        except DispatchLedgerError as error:
            report.error, report.outcome = error, outcome_of(error)
            report.held = str(error) if isinstance(error, GuardError) else None
            report.busy = isinstance(error, BusyError)
            if report.busy:
                report.left_alone = "a run is working on it"
        except Exception as error:
            LOG.exception("window was not reconciled", window=window.name)
            reason = f"window {window}: unexpected {type(error).__name__}: {error}; please report it"
            report.error, report.outcome = CorruptError(reason), "failed"
        try:
            report.findings = history.findings_of_pass(self._store, self._pipeline, window, report.run_id, FINDINGS_MAX)
        except DispatchLedgerError as error:
            report.error = report.error or error
        return report

    def _look(self, report: WindowReport, release: Note | None, run_id: UUID) -> None:
        window = report.window
        facts = self._facts(window)
        note = release if facts.held_reason is not None else None
        if facts.leased:
            raise BusyError(f"window {window} is being worked on; try again later")
        if facts.held_reason is not None:
            refusal = held(window, facts.held_reason, facts.held_kind) if note is None else None
            refusal = refusal or not_released(window, facts.held_kind)
            if refusal is not None:
                raise refusal
        report.left_alone = self._leave_alone(window, facts)
        if report.left_alone is None:
            self._rescan(report, facts, note, run_id)
        elif note is not None:
            raise GuardError(f"window {window} stays held: {report.left_alone}; release it after reconcile.grace")

    def _facts(self, window: Window) -> WindowFacts:
        return evidence.window_facts(self._store, self._pipeline, window)

    @property
    def _store(self) -> Store:
        return self.dispatcher.store

    @property
    def _pipeline(self) -> str:
        return self.dispatcher.settings.pipeline

    def _leave_alone(self, window: Window, facts: WindowFacts) -> str | None:
        """Say why a window is too young to be looked at; None when it is not."""
        grace = self.options.grace
        if not runs.has_ended(self._store, window, grace):
            return f"it ended less than {_shown(grace)} ago"
        if facts.run_age_s is not None and facts.run_age_s < grace.total_seconds():
            return f"its last run ended less than {_shown(grace)} ago"
        return None

    def _rescan(self, report: WindowReport, facts: WindowFacts, note: Note | None, run_id: UUID) -> None:
        """Look at a window under its lease.

        Args:
            note: who lets it go on, if it is held.
        """
        request = replace(self.dispatcher.request(report.window, "reconcile"), run_id=run_id)
        started = runs.start_run(self._store, request, even_held=note is not None)
        options = self.options if note is None else replace(self.options, guarded=False, grace=timedelta())
        report.run_id = started.tenure.run_id
        bound = structlog.contextvars.bound_contextvars(window=report.window.name, run_id=str(report.run_id))

        def begin(run: Run) -> None:
            enter(run, note, adopted=facts.held_kind == "adopted")

        with bound, self.dispatcher.working(started, report.counts, begin) as run:
            run.skips_claimed = False
            rescan = Rescan(run, options, facts.completed)
            reconcile_window(rescan, owed=self._is_owed(report.window))
            runs.complete_reconcile(self._store, run.tenure, run.counts, _not_looked_at(rescan))
            report.outcome, report.late = "completed", rescan.late
            LOG.info("window reconciled", late=rescan.late, missed=rescan.missed_n)

    def _is_owed(self, window: Window) -> bool:
        not_before = self.dispatcher.settings.schedule.not_before
        return not_before is None or window.start >= not_before


def reconcile_window(rescan: Rescan, *, owed: bool) -> None:
    """The steps of a reconcile. Each can be repeated, and is safe to be the last one before a crash."""
    settle_missed(rescan)
    compare_source(rescan)
    note_missed(rescan)
    finish_unfinished(rescan)
    redispatch_missed(rescan)
    compare_objects(rescan)
    look_at_duplicates(rescan)
    look_at_overdue(rescan)
    note_not_dispatched(rescan, owed=owed)


def note_not_dispatched(rescan: Rescan, *, owed: bool) -> None:
    """Note a closed window that no dispatch has completed; sending it is left to `dispatch --due`."""
    if rescan.completed or not owed:
        return
    run = rescan.run
    seen = Seen(utf8(run.tenure.window.name), None, {"due": run.counts.due, "end": run.tenure.window.end_name})
    findings.record_seen(run.store, run.tenure, "window_not_dispatched", [seen])


def _not_looked_at(rescan: Rescan) -> list[str]:
    """Return the kinds of findings that this pass does not decide."""
    unless = [] if rescan.options.settings.receipt_within is not None else ["overdue_receipt"]
    return unless if rescan.completed else [*unless, "missed"]


def _shown(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} seconds"


def windows_to_rescan(dispatcher: Dispatcher, lookback: timedelta) -> list[Window]:
    """Return the closed windows within `lookback`, oldest first."""
    return runs.closed_windows(dispatcher.store, lookback, dispatcher.settings.schedule.not_before)


def require_ended(dispatcher: Dispatcher, windows: Sequence[Window]) -> None:
    """Refuse windows that have not ended yet.

    Raises:
        InputError: naming the first of them.
    """
    for window in windows:
        if not runs.has_ended(dispatcher.store, window):
            raise InputError(f"window {window} has not ended yet; it ends at {window.end_name}")


def report_document(report: Report) -> dict[str, Any]:
    """Return the document of `reconcile --json`; of a dry run, which has no run, with what would be repaired."""
    document = {
        "run_id": str(report.run_id),
        "windows": [_window_document(one) for one in report.windows],
        "open": report.count("open"),
        "repaired": report.count("repaired"),
    }
    if not report.dry_run:
        return document
    windows = [_window_document(one) | {"run_id": None, "would_close": one.would_close} for one in report.windows]
    would = {"would_repair": report.would_repair, "would_close": report.would_close}
    return document | {"run_id": None, "windows": windows, "dry_run": True} | would


def _window_document(report: WindowReport) -> dict[str, Any]:
    counts = report.counts
    return {
        "window": report.window.name,
        "run_id": None if report.run_id is None else str(report.run_id),
        "coverage": {
            "evaluated": counts.evaluated,
            "due": counts.due,
            "claimed": counts.already_claimed + counts.claimed,
        },
        "findings": report.findings,
        "held": report.held is not None,
        "late": report.late,
        "left_alone": report.left_alone,
        "error": None if report.error is None else str(report.error),
    }
