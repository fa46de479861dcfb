"""What a person sees: tables and one-line summaries. Every number comes from a run's report or from the ledger."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ledger.errors import BusyError, CancelledError, DispatchLedgerError, InputError

if TYPE_CHECKING:  # to look at a report takes nothing of what made it
    from dispatch.dispatcher import RunReport
    from ledger.checks import Check
    from reconcile.adopt import Adopted
    from reconcile.reconciler import Report, WindowReport

_COUNTS = {
    "evaluated": "returned by the index",
    "outside": "not in the window, as instants",
    "not_due": "not waiting any more",
    "set_aside": "due, but cannot be used (see findings)",
    "due": "due",
    "already_claimed": "claimed before, not sent again",
    "claimed": "claimed by this run",
    "entries": "jobs opened",
    "confirmed": "jobs confirmed by their queue",
    "recovered": "jobs finished that an earlier run left",
}
DRY_RUN = "dry run: nothing was written or sent"
_NO_WRAP = {"window", "state", "entry", "job", "booked for", "kind"}
_STATE_STYLE = {
    "completed": "green",
    "dispatched": "green",
    "confirmed": "green",
    "repaired": "green",
    "failed": "red",
    "not_dispatched": "red",
    "open": "red",
    "held": "red",
    "void": "red",
    "running": "cyan",
    "busy": "yellow",
    "cancelled": "yellow",
    "incomplete": "yellow",
    "pending": "yellow",
    "sending": "yellow",
    "ok": "green",
    "warning": "yellow",
    "skipped": "dim",
}


def styled(state: object) -> Text:
    """Return a state in its colour."""
    text = str(state)
    return Text(text, style=_STATE_STYLE.get(text.rstrip(), ""))


def plain_text(value: object) -> str:
    """Return a value for a table cell, with control characters made visible: nothing in it may steer the terminal."""
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def run_exit_code(report: "RunReport") -> int:
    """Return the exit code that a run's outcome stands for."""
    if report.error is not None:
        return error_exit_code(report.error)
    return 3 if report.open_findings else 0


def show_run(console: Console, report: "RunReport") -> None:
    """Print what a run did."""
    title = Text.assemble("window ", (report.window.name, "bold"), " · ", report.flow, " · ", styled(report.outcome))
    if report.dry_run:
        title = Text.assemble((DRY_RUN, "bold yellow"), "\n", title)
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 1))
    counts = msgspec.structs.asdict(report.counts)
    table.add_row("pages read", str(counts["pages"]), "")
    for name, meaning in _COUNTS.items():
        indent = "  " if name in {"outside", "not_due", "set_aside", "already_claimed", "claimed"} else ""
        table.add_row(indent + name.replace("_", " "), f"{counts[name]:,}", Text(meaning, style="dim"))
    if report.open_findings:
        table.add_row(
            "open findings", Text(str(report.open_findings), style="red"), Text("of this window", style="dim")
        )
    table.columns[1].justify = "right"
    console.print(table)


def show_runs(console: Console, reports: "Sequence[RunReport]") -> None:
    """Print one line a run."""
    title = Text(DRY_RUN, style="bold yellow") if any(one.dry_run for one in reports) else None
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column("window", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for name in ("due", "already_claimed", "claimed", "entries", "confirmed", "recovered", "findings"):
        table.add_column(name.replace("_", " "), justify="right")
    for report in reports:
        counts = report.counts
        numbers = (
            counts.due,
            counts.already_claimed,
            counts.claimed,
            counts.entries,
            counts.confirmed,
            counts.recovered,
        )
        cells = [*(f"{number:,}" for number in numbers), str(report.open_findings)]
        table.add_row(report.window.name, styled(report.outcome), *cells)
    console.print(table)


def show_facts(console: Console, title: str, facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values below each other; values of None are left out."""
    console.print(title, style="table.title", highlight=False)  # a table would break it to its own width
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value is not None:
            table.add_row(Text(name, style="dim"), styled(plain_text(value)))
    console.print(table)


def show_rows(
    console: Console,
    title: str,
    rows: list[dict[str, Any]],
    columns: dict[str, str],
    numbers: Collection[str] = (),
) -> None:
    """Print rows as a table; `columns` maps a row's key to its heading. Nothing is printed without rows.

    Args:
        numbers: the keys whose values stand to the right.
    """
    if not rows:
        return
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for name, heading in columns.items():
        justify: Literal["right", "left"] = "right" if name in numbers else "left"
        table.add_column(heading, overflow="fold", no_wrap=heading in _NO_WRAP, justify=justify)
    for row in rows:
        cells = [_readable(row.get(name)) for name in columns]
        table.add_row(
            *(styled(cell) if name == "state" else Text(cell) for name, cell in zip(columns, cells, strict=True))
        )
    console.print(table)


def _readable(value: object) -> str:
    if isinstance(value, msgspec.Raw):
        return plain_text(bytes(value).decode())
    return plain_text(value)


def show_events(console: Console, events: list[dict[str, Any]]) -> None:
    """Print a story, one event a line, in order of time."""
    table = Table(title="history", title_justify="left", show_header=False, box=None, padding=(0, 1))
    for event in events:
        rest = ", ".join(f"{name} {plain_text(value)}" for name, value in event.items() if _is_detail(name, value))
        table.add_row(Text(event["at"], style="dim"), event["event"], Text(rest, style="dim", overflow="fold"))
    if events:
        console.print(table)


def _is_detail(name: str, value: object) -> bool:
    return name not in {"at", "event"} and value is not None


def error_exit_code(error: DispatchLedgerError) -> int:
    """Return the exit code of work that had begun when this ended it; a wrong configuration is a failure then."""
    if isinstance(error, CancelledError):
        return 128 + error.signal_number
    return 1 if isinstance(error, InputError) else error.exit_code


def reconcile_exit_code(report: "WindowReport", *, explicit: bool) -> int:
    """Return the exit code that the reconcile of one window stands for.

    Args:
        explicit: whether the window was asked for by name, so that finding it busy is no success.
    """
    if report.busy:
        return BusyError.exit_code if explicit else 0
    if report.error is not None:
        return error_exit_code(report.error)
    # Of a dry run, a finding also says in which state a reconcile would leave it.
    return 3 if any(one.get("would_be", one["state"]) == "open" for one in report.findings) else 0


def show_reconcile(console: Console, report: "Report") -> None:
    """Show what a reconcile found, window by window."""
    rows = [
        {
            "window": one.window.name,
            "outcome": one.left_alone or one.outcome or "",
            "due": one.counts.due,
            "claimed": one.counts.already_claimed + one.counts.claimed,
            "late": one.late,
            "open": sum(found["state"] == "open" for found in one.findings),
            "repaired": sum(found["state"] == "repaired" for found in one.findings),
            "would repair": sum(found.get("would_repair") is not None for found in one.findings),
            "would close": one.would_close,
        }
        for one in report.windows
    ]
    names = ["window", "outcome", "due", "claimed", "late", "open"]
    names += ["would repair", "would close"] if report.dry_run else ["repaired"]
    numbers = f"{report.count('open')} open, {report.count('repaired')} repaired"
    if report.dry_run:
        console.print(Text(DRY_RUN, style="bold yellow"))
        numbers = f"{report.count('open')} open, {report.would_repair} would be repaired"
    show_rows(console, f"reconcile · {numbers}", rows, {name: name for name in names})
    found = [one for window in report.windows for one in window.findings]
    shown = {"id": "id", "kind": "kind", "cause": "cause", "record_id": "record", "state": "state"}
    shown |= {"would_be": "would be", "would_repair": "by"} if report.dry_run else {"repair": "repair"}
    show_rows(console, "findings", found, shown | {"detail": "detail"})


def show_checks(console: Console, checks: "Collection[Check]") -> None:
    """Print one line a check, however long, so that it can be searched and copied; and how many are in which state."""
    for one in checks:
        line = Text.assemble(styled(f"{one.state:<8}"), f"{one.name:<18}")
        subject, detail = plain_text(one.subject), plain_text(one.detail)
        line.append(f"{subject}: {detail}" if subject else detail)
        if one.mend:
            line.append(f". To mend it: {plain_text(one.mend)}", style="bold")
        console.print(line, soft_wrap=True)
    states: Counter[str] = Counter(one.state for one in checks)
    words = {"failed": "failed", "warning": "warnings", "skipped": "skipped"}
    told = ", ".join(f"{states[state]} {word}" for state, word in words.items() if states[state])
    console.print(f"{len(checks)} checks: {told or 'all is well'}.")


def show_adopted(console: Console, adopted: "list[Adopted]") -> None:
    """Show what was taken over from the object store, window by window, and what could not be."""
    if not adopted:
        console.print("No object of this pipeline was found.")
    behind = [{"window": one.window.name, "why": one.behind} for one in adopted if one.behind]
    show_rows(console, "behind their witnesses", behind, {"window": "window", "why": "why"})
    names = ("window", "entries", "records", "known", "suspected", "refused")
    rows = [
        {
            "window": one.window.name,
            "entries": one.entries,
            "records": one.records,
            "known": one.known,
            "suspected": one.suspected,
            "refused": len(one.refused),
        }
        for one in adopted
    ]
    show_rows(console, "adopted from objects, held for you", rows, {name: name for name in names})
    refused = [{"object": key, "reason": reason} for one in adopted for key, reason in one.refused.items()]
    show_rows(console, "not adopted", refused, {"object": "object", "reason": "reason"})
