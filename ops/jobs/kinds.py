"""How each kind of job is done: through the same code as the command line, a step at a time.

A step is a window. What came of one is kept in the ledger at once, so that an attempt that is cancelled, moved or
killed leaves its steps behind, and the next one goes on after them.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import msgspec

from dispatch.aws.objects import Upload
from dispatch.dispatcher import Dispatcher, run_document
from ledger import jobs, reports
from ledger.acknowledging import parse_note
from ledger.errors import BusyError, CancelledError, DispatchLedgerError, UnavailableError
from ledger.facts import RunCounts
from ledger.ids import new_id
from ledger.instants import Window, parse_window
from ledger.jobs import Held, Job
from ledger.plans import Scope, plan_document
from ledger.reports import REPORTED_KINDS, FindingsReport, Wanted, WindowsReport
from ledger.settings import parse_duration
from ledger.spans import parse_bounds
from ops import report_html
from ops import reports as shown
from ops.context import encoded
from ops.jobs.requests import PARAMS, DispatchParams, Params, ReconcileParams, RedoParams, ReportParams
from reconcile.reconciler import Reconciler, Report, WindowReport, report_document, require_ended, windows_to_rescan
from reconcile.redo import apply_plan, make_plan, scope_of_group
from reconcile.rescan import Options

# A larger result goes into the bucket, and the job says where.
RESULT_BYTES_MAX = 256 * 1024
_TYPES = {"json": "application/json", "csv": "text/csv; charset=utf-8", "html": "text/html; charset=utf-8"}
# Of several errors the first of these decides what becomes of the job: what may be mended by a repeat goes first.
_ORDER = (CancelledError, UnavailableError, BusyError)


@dataclass
class Progress:
    """How far a job has come; written by the one who works, read by the one who renews the claim.

    Attributes:
        done, total: windows, when there are several; else the records read, whose number is known in the end only.
    """

    done: int = 0
    total: int | None = None


@dataclass
class Task:
    """A job in hand, and what its work is done with.

    Attributes:
        dispatcher: its store and its cancellation are the job's own.
    """

    job: Job
    held: Held
    dispatcher: Dispatcher
    progress: Progress = field(default_factory=Progress)

    @property
    def params(self) -> Params:
        """What was asked for."""
        return PARAMS[self.job.kind].model_validate(json.loads(self.job.params))

    def kept(self) -> dict[str, bytes]:
        """Return the documents of the windows that earlier attempts have completed, by the window's name."""
        return jobs.list_parts(self.dispatcher.store, self.job.id)

    def keep(self, window: Window, document: object) -> bytes:
        """Keep the document of a window that is done.

        Raises:
            ClaimLostError: when the job is no longer ours.
        """
        raw = encoded(document)
        jobs.add_part(self.dispatcher.store, self.held, window.name, raw)
        return raw

    def count_records(self) -> None:
        """Let the progress be the records that a run reads."""

        def note(counts: RunCounts) -> None:
            self.progress.done = counts.evaluated

        self.dispatcher.on_progress = note


@dataclass(frozen=True)
class Outcome:
    """What came of an attempt: its document, and the error that kept it from being all of the work."""

    document: object
    error: DispatchLedgerError | None = None


@dataclass(frozen=True)
class Kind:
    """One kind of job.

    Attributes:
        work: does it, or as much of it as it can; what it raises is the outcome, too.
        moves: whether it can be broken off between steps and begun again elsewhere without loss.
    """

    work: Callable[[Task], Outcome]
    moves: bool = False


def _dispatch(task: Task) -> Outcome:
    window = cast("DispatchParams", task.params).chosen
    if window is None:
        return _dispatch_due(task)
    task.count_records()
    require_ended(task.dispatcher, [window])
    report = task.dispatcher.dispatch(window, "manual")
    task.progress.done = report.counts.evaluated
    task.progress.total = None if report.error else report.counts.evaluated
    return Outcome(run_document(report), report.error)


def _dispatch_due(task: Task) -> Outcome:
    """Dispatch what is owed; a window that an earlier attempt has completed is not owed any more."""
    kept, left = task.kept(), []
    task.progress.done = len(kept)
    for report in task.dispatcher.dispatch_due("manual"):
        if report.error is None:
            kept[report.window.name] = task.keep(report.window, run_document(report))
            task.progress.done += 1
        else:
            left.append(report)
    task.progress.total = task.progress.done + len(left)
    documents = [*map(msgspec.Raw, kept.values()), *map(run_document, left)]
    return Outcome({"runs": documents}, first_of(report.error for report in left))


def _reconcile(task: Task) -> Outcome:
    params, dispatcher = cast("ReconcileParams", task.params), task.dispatcher
    settings = dispatcher.settings.reconcile
    require_ended(dispatcher, params.chosen)
    lookback = settings.lookback if params.lookback is None else parse_duration(params.lookback)
    windows = params.chosen or windows_to_rescan(dispatcher, lookback)
    options = Options(settings, settings.grace, repair=not params.no_repair, delete_orphans=params.delete_orphans)
    reconciler = Reconciler(dispatcher, options)
    release = None if params.reason is None else parse_note(task.job.created_by, params.reason)
    return _reconcile_each(task, windows, lambda window: reconciler.reconcile_window(window, release=release))


def _reconcile_each(task: Task, windows: list[Window], look: Callable[[Window], WindowReport]) -> Outcome:
    """Reconcile each window that no earlier attempt has completed; those that fail do not keep the others waiting."""
    named = bool(cast("ReconcileParams", task.params).chosen)
    documents, errors = task.kept(), []
    if len(windows) == 1:
        task.count_records()
    else:
        task.progress.done, task.progress.total = sum(one.name in documents for one in windows), len(windows)
    for window in [one for one in windows if one.name not in documents]:
        report = look(window)
        done = report.error is None or (report.busy and not named)
        document = _window_document(report)
        documents[window.name] = task.keep(window, document) if done else encoded(document)
        if not done and report.error is not None:
            errors.append(report.error)
        if isinstance(report.error, CancelledError):
            break
        task.progress.done = report.counts.evaluated if len(windows) == 1 else task.progress.done + 1
    if not errors:
        task.progress.total = task.progress.done
    order = [name for name in documents if name not in {one.name for one in windows}] + [one.name for one in windows]
    found = [documents[name] for name in order if name in documents]
    return Outcome(_reconcile_document(task, found), first_of(errors))


def _window_document(report: WindowReport) -> Any:
    return report_document(Report(report.run_id or new_id(), [report]))["windows"][0]


def _reconcile_document(task: Task, windows: list[bytes]) -> dict[str, Any]:
    """Return the document of `reconcile --json`, made of those of its windows."""
    read = [json.loads(raw) for raw in windows]
    states = [finding["state"] for window in read for finding in window["findings"]]
    return {
        "run_id": next((window["run_id"] for window in read if window["run_id"]), str(task.job.id)),
        "windows": list(map(msgspec.Raw, windows)),
        "open": states.count("open"),
        "repaired": states.count("repaired"),
    }


def _report(task: Task) -> Outcome:
    params, dispatcher = cast("ReportParams", task.params), task.dispatcher
    store, pipeline = dispatcher.store, dispatcher.settings.pipeline
    bounds = parse_bounds(params.since, params.until)
    report: WindowsReport | FindingsReport
    if params.report == "windows":
        report = reports.report_windows(store, pipeline, bounds)
    else:
        report = reports.report_findings(store, pipeline, bounds, Wanted(REPORTED_KINDS[params.report]))
    body = _written(params.report, report, params.format)
    task.progress.done = task.progress.total = 1
    span = report.about.span
    return Outcome(
        {"report": params.report, "format": params.format, "from": span.first, "to": span.end}
        | store_result(task, body, params.format)
        | ({"left_off": report.left_off} if isinstance(report, FindingsReport) and report.left_off else {})
    )


def _written(name: str, report: WindowsReport | FindingsReport, form: str) -> bytes:
    if form == "json":
        return encoded(report.document)
    if isinstance(report, WindowsReport):
        return (shown.windows_csv(report) if form == "csv" else report_html.windows_page(report)).encode()
    return (shown.findings_csv(report) if form == "csv" else report_html.findings_page(name, report)).encode()


def store_result(task: Task, body: bytes, form: str) -> dict[str, Any]:
    """Put a result into the bucket, below `<prefix>_results/`; a repeat replaces it. Says where it is."""
    objects, settings = task.dispatcher.partners.objects, task.dispatcher.settings
    key = f"{settings.objects.prefix}_results/{settings.pipeline}/{task.job.id}.{form}"
    objects.put_many(objects.bucket, [Upload(key, body, {"Content-Type": _TYPES[form]})])
    return {"object": {"bucket": objects.bucket, "key": key}, "bytes": len(body)}


def result_of(task: Task, document: object) -> bytes:
    """Return a document as a job keeps it; a large one goes into the bucket, and its plain members stay."""
    raw = encoded(document)
    if len(raw) <= RESULT_BYTES_MAX:
        return raw
    plain = {name: value for name, value in cast("dict[str, Any]", document).items() if not isinstance(value, list)}
    return encoded(plain | store_result(task, raw, "json"))


def _redo(task: Task) -> Outcome:
    """Make a plan, under the job's own id so that a repeat finds it, or apply one."""
    params, dispatcher = cast("RedoParams", task.params), task.dispatcher
    who = task.job.created_by
    if params.plan is None:
        applied = apply_plan(dispatcher, UUID(str(params.apply)), params.by or who)
        return Outcome(applied.document, applied.error)
    wanted, group_by = params.plan, dispatcher.settings.source.group_by
    scope = Scope(
        groups=tuple(scope_of_group(one, group_by) for one in wanted.group),
        records=tuple(wanted.record),
        include_not_due=wanted.include_not_due,
        include_worked=wanted.include_worked,
    )
    note = parse_note(wanted.by or who, wanted.reason)
    plan = make_plan(dispatcher, parse_window(wanted.window), scope, note, task.job.id)
    return Outcome(plan_document(dispatcher.store, plan))


KINDS: dict[str, Kind] = {
    "dispatch": Kind(_dispatch, moves=True),
    "reconcile": Kind(_reconcile, moves=True),
    "report": Kind(_report),
    "redo": Kind(_redo),
}


def first_of(errors: Iterable[DispatchLedgerError | None]) -> DispatchLedgerError | None:
    """Return the error that decides: a cancellation, then what a repeat may mend, then the rest."""
    found = [error for error in errors if error is not None]
    ranked = [error for kind in _ORDER for error in found if isinstance(error, kind)]
    return next(iter(ranked + found), None)
