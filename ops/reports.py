"""Reports for a terminal and for a spreadsheet. Every number comes from the same document as the JSON."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console

from ledger.reports import COUNTS, FINDING_COLUMNS, WINDOW_COLUMNS, About, FindingsReport, WindowsReport
from ops import views

# A cell that begins with one of these may be run as a formula by a spreadsheet; a quote before it makes it text.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBERS = {*COUNTS, "open_findings", "coverage"}
_SHOWN_FINDING = ("id", "kind", "cause", "window", "record_id", "state", "repair", "first_seen_at", "detail")


def windows_csv(report: WindowsReport) -> str:
    """Return the windows as CSV (RFC 4180), one row each."""
    return _csv(WINDOW_COLUMNS, report.windows)


def findings_csv(report: FindingsReport) -> str:
    """Return the findings as CSV (RFC 4180), one row each."""
    return _csv(FINDING_COLUMNS, report.findings)


def _csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([csv_cell(row[name]) for name in columns] for row in rows)
    return file.getvalue()


def csv_cell(value: object) -> str:
    """Return a value as a cell: no control characters, and text never begins like a formula."""
    if isinstance(value, int | float):
        return str(value)
    text = bytes(value).decode() if isinstance(value, msgspec.Raw) else str("" if value is None else value)
    return ("'" if text.startswith(_FORMULA) else "") + views.plain_text(text)


def show_windows(console: Console, report: WindowsReport) -> None:
    """Print one line a window, and the totals below."""
    about = report.about
    if not report.windows:
        console.print(f"No window of pipeline {about.pipeline} from {about.span.first} to {about.span.end}.")
        return
    totals = {"window": f"{len(report.windows)} windows", "state": "", **report.totals}
    columns = {name: name.replace("_", " ") for name in WINDOW_COLUMNS}
    views.show_rows(console, _title("windows", about), [*report.windows, totals], columns, numbers=_NUMBERS)


def show_findings(console: Console, name: str, report: FindingsReport, *, everywhere: bool = False) -> None:
    """Print one line a finding, newest first; `everywhere` when they are not of a range of windows."""
    title = f"{name} · {report.about.pipeline}" if everywhere else _title(name, report.about)
    if not report.findings:
        console.print(f"{title}: none.")
        _show_prevented(console, report)
        return
    columns = {name: name.replace("_", " ") for name in _SHOWN_FINDING}
    views.show_rows(console, title, report.findings, columns, numbers={"id"})
    _show_prevented(console, report)


def _show_prevented(console: Console, report: FindingsReport) -> None:
    if report.prevented is not None:
        console.print(f"Prevented: records met again by a dispatch, and not sent again: {report.prevented:,}.")


def _title(name: str, about: About) -> str:
    return f"{name} · {about.pipeline} · {about.span.first} to {about.span.end}"
