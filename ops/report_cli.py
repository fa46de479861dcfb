"""The commands that look back: reports, findings, audit."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from ledger import audit, reports
from ledger.acknowledging import acknowledge as acknowledge_finding
from ledger.acknowledging import parse_note
from ledger.errors import InputError
from ledger.instants import parse_window
from ledger.reports import FINDING_STATES, KINDS, REPORTED_KINDS, FindingsReport, Wanted, WindowsReport
from ledger.spans import parse_bounds
from ops import report_html, views, wiring
from ops import reports as shown
from ops.context import CONTEXT, say_error, user_name

_LIST_MAX = 1000


class Format(StrEnum):
    """How a report is written."""

    table = "table"
    json = "json"
    csv = "csv"
    html = "html"


class State(StrEnum):
    """Which findings are listed."""

    open = "open"
    repaired = "repaired"
    acknowledged = "acknowledged"
    closed = "closed"
    all = "all"


Since = Annotated[
    str | None, typer.Option("--from", help="Windows that start at this instant or later; 7 days back by default.")
]
Until = Annotated[str | None, typer.Option("--to", help="Windows that start before this instant; now by default.")]
As = Annotated[Format | None, typer.Option("--format", help="How to write it; table by default, json with --json.")]

report_app = typer.Typer(help="What the windows of a range amount to, and what was found in them.")
findings_app = typer.Typer(help="What does not agree, and what a person says about it.")
audit_app = typer.Typer(help="Whether the books balance.")


def add_to(app: typer.Typer) -> None:
    """Hang these commands below the others."""
    app.add_typer(report_app, name="report")
    app.add_typer(findings_app, name="findings")
    app.add_typer(audit_app, name="audit")


@report_app.command("windows", epilog="Example: dispatch-ledger report windows --format html > report.html")
def report_windows(since: Since = None, until: Until = None, form: As = None) -> None:
    """State, jobs, records, open findings and coverage of each window."""
    chosen, bounds, settings = _form(form), parse_bounds(since, until), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        report = reports.report_windows(store, settings.pipeline, bounds)
    _write_windows(report, chosen)


@report_app.command("duplicates", epilog="Example: dispatch-ledger report duplicates --from 2026-09-17T00:00:00Z")
def report_duplicates(since: Since = None, until: Until = None, form: As = None) -> None:
    """Jobs that may have been sent, or worked, more than once."""
    _report_findings("duplicates", since, until, form)


@report_app.command("missed", epilog="Example: dispatch-ledger report missed --format csv > missed.csv")
def report_missed(since: Since = None, until: Until = None, form: As = None) -> None:
    """Records that were due and never claimed, and windows that were never dispatched."""
    _report_findings("missed", since, until, form)


@report_app.command("orphans", epilog="Example: dispatch-ledger report orphans --to 2026-09-17T00:00:00Z")
def report_orphans(since: Since = None, until: Until = None, form: As = None) -> None:
    """Objects that nobody refers to, and entries whose object is gone."""
    _report_findings("orphans", since, until, form)


@report_app.command("findings", epilog="Example: dispatch-ledger report findings --format json")
def report_findings(since: Since = None, until: Until = None, form: As = None) -> None:
    """All findings, of every kind and state."""
    _report_findings("findings", since, until, form)


def _report_findings(name: str, since: str | None, until: str | None, form: Format | None) -> None:
    chosen, bounds, settings = _form(form), parse_bounds(since, until), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        report = reports.report_findings(store, settings.pipeline, bounds, Wanted(REPORTED_KINDS[name]))
    _write_findings(name, report, chosen)


def _form(given: Format | None) -> Format:
    """Choose the format; `--json` before or after the command is the same as `--format json`."""
    if CONTEXT.json and given not in {None, Format.json}:
        raise InputError(f"--json and --format {given} contradict each other; give one of them")
    return Format.json if CONTEXT.json else given or Format.table


def _write_windows(report: WindowsReport, form: Format) -> None:
    match form:
        case Format.table:
            shown.show_windows(CONTEXT.console, report)
        case Format.json:
            CONTEXT.print_json(report.document)
        case Format.csv:
            _write(shown.windows_csv(report))
        case Format.html:
            _write(report_html.windows_page(report))


def _write_findings(name: str, report: FindingsReport, form: Format) -> None:
    match form:
        case Format.table:
            shown.show_findings(CONTEXT.console, name, report)
        case Format.json:
            CONTEXT.print_json(report.document)
        case Format.csv:
            _write(shown.findings_csv(report))
        case Format.html:
            _write(report_html.findings_page(name, report))
    if report.left_off and form in {Format.table, Format.csv}:
        _say_left_off(report, "narrow --from and --to")


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.flush()


def _say_left_off(report: FindingsReport, advice: str) -> None:
    sys.stderr.write(f"{report.left_off} older findings are not shown; {advice} to see them\n")


@findings_app.command("list", epilog="Example: dispatch-ledger findings list --kind duplicate --state all")
def list_findings(
    state: Annotated[State, typer.Option(help="Which ones.")] = State.open,
    kind: Annotated[str | None, typer.Option(help=f"One of {', '.join(KINDS)}; every kind by default.")] = None,
    window: Annotated[str | None, typer.Option(help="The window's start; every window by default.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=reports.FINDINGS_MAX, help="How many at most, newest first.")
    ] = _LIST_MAX,
) -> None:
    """List findings, newest first; open ones by default."""
    chosen = None if window is None else parse_window(window)
    wanted = Wanted(_kinds(kind), FINDING_STATES if state == State.all else (state.value,), limit)
    settings = CONTEXT.settings()
    with wiring.ledger(settings) as store:
        report = reports.list_findings(store, settings.pipeline, chosen, wanted)
    if CONTEXT.json:
        CONTEXT.print_json(report.document)
        return
    shown.show_findings(CONTEXT.console, "findings", report, everywhere=True)
    if report.left_off:
        _say_left_off(report, "raise --limit, or give --window or --kind,")


def _kinds(kind: str | None) -> tuple[str, ...]:
    if kind is not None and kind not in KINDS:
        raise InputError(f"--kind {kind[:40]!r} is not allowed; use one of {', '.join(KINDS)}")
    return KINDS if kind is None else (kind,)


@findings_app.command("ack", epilog='Example: dispatch-ledger findings ack 7 --reason "refunded by hand, ticket 4711"')
def acknowledge(
    finding: Annotated[int, typer.Argument(metavar="ID", help="The finding's id, as the list shows it.")],
    reason: Annotated[str, typer.Option(help="Why it needs nothing more.")],
    by: Annotated[str | None, typer.Option(help="Who says so; the user of this machine by default.")] = None,
) -> None:
    """Take note of an open finding, so that it does not count as open any more."""
    note, settings = parse_note(user_name() if by is None else by, reason), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        document = acknowledge_finding(store, settings.pipeline, finding, note)
    if CONTEXT.json:
        CONTEXT.print_json(document)
        return
    views.show_facts(CONTEXT.console, f"finding {finding}", [(name, document[name]) for name in _ACKNOWLEDGED])


_ACKNOWLEDGED = ("kind", "cause", "window", "state", "acknowledged_by", "acknowledged_reason")


@audit_app.command("verify", epilog="Example: dispatch-ledger audit verify --from 2026-09-01T00:00:00Z")
def verify(since: Since = None, until: Until = None) -> None:
    """Check the balance of every window, oldest first; exit 1 names the first that does not balance."""
    bounds, settings = parse_bounds(since, until), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        checked = audit.verify(store, settings.pipeline, bounds)
    if CONTEXT.json:
        CONTEXT.print_json(checked.document)
    else:
        _show_audit(checked)
    if checked.error is not None:
        say_error(str(checked.error))
        raise typer.Exit(checked.error.exit_code)


def _show_audit(checked: audit.Audit) -> None:
    found = [{"window": one["window"]} | check for one in checked.unbalanced for check in one["checks"]]
    columns = {name: name for name in ("window", "check", "expected", "found")}
    views.show_rows(CONTEXT.console, "does not balance", found, columns, numbers={"expected", "found"})
    balanced = checked.windows_checked - checked.unbalanced_n
    CONTEXT.console.print(f"{balanced:,} of {checked.windows_checked:,} windows balance.")
