"""Reports: what the windows of a range amount to, and what was found in them. Reads only; one place for each number."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ledger.documents import FINDINGS, Document, Row, finding_document, one_snapshot, plain, rows
from ledger.instants import Window, format_s
from ledger.spans import Bounds, Span
from ledger.store import Connection, Store, sql

COUNTS = ("entries", "pending", "sending", "confirmed", "void", "records")
WINDOW_COLUMNS = ("window", "state", *COUNTS, "open_findings", "verified_at", "coverage")
FINDING_COLUMNS = (
    "id", "kind", "cause", "window", "record_id", "entry_id", "object_key", "state", "repair", "first_seen_at",
    "detail",
)  # fmt: skip
STATES = ("dispatched", "incomplete", "not_dispatched", "held", "running")
FINDING_STATES = ("open", "repaired", "acknowledged", "closed")
KINDS = (
    "missed", "window_not_dispatched", "unfinished", "duplicate", "orphan_object", "missing_object",
    "changed_after_dispatch", "stale_source_status", "bad_record", "overdue_receipt",
)  # fmt: skip
# The reports about findings, each with the kinds that it shows.
REPORTED_KINDS = {
    "duplicates": ("duplicate",),
    "missed": ("missed", "window_not_dispatched"),
    "orphans": ("orphan_object", "missing_object"),
    "findings": KINDS,
}
# So many findings are listed at most, whoever asks.
FINDINGS_MAX = 100_000
_COVERAGE_DIGITS = 6
_IN_SPAN = "AND windows.start_s >= %(first_s)s AND windows.start_s < %(end_s)s "
_WANTED = "AND findings.kind = ANY(%(kinds)s) AND findings.state = ANY(%(states)s) "
_COUNTED = (
    "SELECT findings.kind, findings.state, count(*) AS findings FROM findings "  # noqa: S608 - constants only
    "JOIN windows ON windows.id = findings.window_id JOIN pipelines ON pipelines.id = findings.pipeline_id "
    "WHERE pipelines.name = %(pipeline)s " + _IN_SPAN + _WANTED + "GROUP BY findings.kind, findings.state"
)
_PREVENTED = (
    "SELECT coalesce(sum(runs.already_claimed), 0) AS prevented FROM runs "  # noqa: S608 - constants only
    "JOIN windows ON windows.id = runs.window_id JOIN pipelines ON pipelines.id = windows.pipeline_id "
    "WHERE pipelines.name = %(pipeline)s AND runs.outcome = 'completed' AND runs.cause IN ('schedule', 'manual') "
    + _IN_SPAN
)
_LISTED = FINDINGS + _IN_SPAN + _WANTED + "ORDER BY findings.id DESC LIMIT %(limit)s"
Tally = dict[tuple[str, str], int]


@dataclass(frozen=True)
class About:
    """What a report is about, and when it was made, on the database's clock."""

    pipeline: str
    span: Span
    generated_at: datetime


@dataclass(frozen=True)
class WindowsReport:
    """The windows of a range, oldest first, with the number of their findings by kind and state."""

    about: About
    windows: list[Document]
    tally: Tally

    @property
    def totals(self) -> Document:
        """The sum of each count over all windows."""
        return {name: sum(one[name] for one in self.windows) for name in (*COUNTS, "open_findings")}

    @property
    def document(self) -> Document:
        """The document of `report windows --json`."""
        return {"windows": self.windows, "totals": self.totals}


@dataclass(frozen=True)
class FindingsReport:
    """Findings of a range, newest first; the tally counts also those beyond the limit.

    Attributes:
        prevented: how often a completed dispatch met a record that was claimed before, and did not send it again; only
            in a report about duplicates.
    """

    about: About
    findings: list[Document]
    tally: Tally
    prevented: int | None = None

    @property
    def left_off(self) -> int:
        """How many there are beyond the limit."""
        return sum(self.tally.values()) - len(self.findings)

    @property
    def document(self) -> Document:
        """The document of the reports about findings; it says so when some were left off."""
        return {"findings": self.findings} | ({"left_off": self.left_off} if self.left_off else {})


@dataclass(frozen=True)
class Wanted:
    """Which findings to list.

    Attributes:
        limit: how many at most, newest first; 1 to `FINDINGS_MAX`.
    """

    kinds: Sequence[str] = field(default=KINDS)
    states: Sequence[str] = field(default=FINDING_STATES)
    limit: int = FINDINGS_MAX

    def key(self) -> Row:
        """The parameters that these are in a statement."""
        return {"kinds": list(self.kinds), "states": list(self.states), "limit": min(self.limit, FINDINGS_MAX)}


def window_numbers(connection: Connection, pipeline: str, span: Span) -> list[Row]:
    """Return the rows of `window_numbers.sql`, with what is covered; every number of a window comes from here."""
    found = rows(connection, sql("window_numbers"), {"pipeline": pipeline, **span.key()})
    return [row | {name: int(row[name]) for name in COUNTS} | {"coverage": _coverage(row)} for row in found]


def _coverage(row: Row) -> float | None:
    """Return claimed by due, to six digits; below 1 as long as any due record is not claimed."""
    due, claimed = row["verified_due"], row["verified_claimed"]
    if due is None:
        return None
    if due == claimed:
        return 1.0
    return float(min(round(claimed / due, _COVERAGE_DIGITS), 1 - 10**-_COVERAGE_DIGITS))


def report_windows(store: Store, pipeline: str, bounds: Bounds) -> WindowsReport:
    """Report the windows of a range, as of one moment; a pipeline that nobody has used yet has none.

    Raises:
        InputError: when the bounds name no range.
    """

    def work(connection: Connection) -> WindowsReport:
        about = _about(connection, pipeline, bounds)
        windows = [_window_document(row) for row in window_numbers(connection, pipeline, about.span)]
        return WindowsReport(about, windows, _tally(connection, about, Wanted()))

    return store.transaction(work)


def report_findings(store: Store, pipeline: str, bounds: Bounds, wanted: Wanted) -> FindingsReport:
    """Report the findings of the windows of a range, newest first, as of one moment.

    Raises:
        InputError: when the bounds name no range.
    """
    return store.transaction(lambda connection: _findings(connection, _about(connection, pipeline, bounds), wanted))


def list_findings(store: Store, pipeline: str, window: Window | None, wanted: Wanted) -> FindingsReport:
    """List the findings of one window, or of all, newest first, as of one moment."""
    span = Span(-(2**62), 2**62) if window is None else only(window)

    def work(connection: Connection) -> FindingsReport:
        one_snapshot(connection)
        return _findings(connection, About(pipeline, span, _now(connection)), wanted)

    return store.transaction(work)


def only(window: Window) -> Span:
    """Return the range that holds this window and no other."""
    return Span(window.start_s, window.start_s + 1)


def now(store: Store) -> datetime:
    """Return the time on the database's clock."""
    return store.transaction(_now)


def _about(connection: Connection, pipeline: str, bounds: Bounds) -> About:
    one_snapshot(connection)
    generated_at = _now(connection)
    return About(pipeline, bounds.span(int(generated_at.timestamp()) + 1), generated_at)


def _now(connection: Connection) -> datetime:
    row = connection.execute("SELECT ledger_now()").fetchone()
    assert row is not None, "a clock always answers"
    answer: datetime = row[0]
    return answer


def _window_document(row: Row) -> Document:
    named = row | {"window": format_s(row["start_s"])}
    return {name: plain(named[name]) for name in WINDOW_COLUMNS}


def _findings(connection: Connection, about: About, wanted: Wanted) -> FindingsReport:
    parameters = _parameters(about, wanted)
    found = [finding_document(row) for row in rows(connection, _LISTED, parameters)]
    about_duplicates = wanted.kinds == REPORTED_KINDS["duplicates"]
    prevented = int(rows(connection, _PREVENTED, parameters)[0]["prevented"]) if about_duplicates else None
    return FindingsReport(about, found, _tally(connection, about, wanted), prevented)


def _tally(connection: Connection, about: About, wanted: Wanted) -> Tally:
    counted: Iterable[Row] = rows(connection, _COUNTED, _parameters(about, wanted))
    return {(row["kind"], row["state"]): row["findings"] for row in counted}


def _parameters(about: About, wanted: Wanted) -> Row:
    return {"pipeline": about.pipeline, **about.span.key(), **wanted.key()}
