"""Whether the books balance: every window of a range, counted anew from its rows, one transaction a window."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ledger.documents import Document, Row, rows
from ledger.errors import CorruptError
from ledger.instants import Window
from ledger.reports import now
from ledger.spans import Bounds, Span
from ledger.store import Connection, Store, sql

# So many windows that do not balance are listed; all of them are counted.
UNBALANCED_MAX = 1000
_WINDOWS_AT_ONCE = 500
_NEXT_WINDOWS = (
    "SELECT windows.id AS window_id, pipeline_id, start_s FROM windows JOIN pipelines ON pipelines.id = pipeline_id "
    "WHERE pipelines.name = %(pipeline)s AND start_s >= %(first_s)s AND start_s < %(end_s)s "
    "ORDER BY start_s LIMIT %(limit)s"
)


@dataclass
class Audit:
    """What an audit has seen so far; `unbalanced` holds the oldest windows that do not balance."""

    windows_checked: int = 0
    unbalanced_n: int = 0
    unbalanced: list[Document] = field(default_factory=list)

    @property
    def document(self) -> Document:
        """The document of `audit verify --json`; it says so when some windows were left off."""
        left_off = self.unbalanced_n - len(self.unbalanced)
        return {
            "windows_checked": self.windows_checked,
            "balanced": not self.unbalanced,
            "first_unbalanced": self.unbalanced[0] if self.unbalanced else None,
            "windows": self.unbalanced,
        } | ({"left_off": left_off} if left_off else {})

    @property
    def error(self) -> CorruptError | None:
        """The error that names the first window that does not balance, or None."""
        if not self.unbalanced:
            return None
        first = self.unbalanced[0]
        said = ", ".join(f"{one['check']} expected {one['expected']} found {one['found']}" for one in first["checks"])
        more = f" ({self.unbalanced_n - 1} more do not either)" if self.unbalanced_n > 1 else ""
        look = f"dispatch-ledger show window {first['window']}"
        return CorruptError(f"window {first['window']} does not balance: {said}{more}; look at it with: {look}")

    def add(self, window: Window, checks: list[Row]) -> None:
        """Count a window, and keep it when it does not balance."""
        self.windows_checked += 1
        self.unbalanced_n += bool(checks)
        if checks and len(self.unbalanced) < UNBALANCED_MAX:
            self.unbalanced.append({"window": window.name, "checks": checks})


def verify(store: Store, pipeline: str, bounds: Bounds) -> Audit:
    """Check the balance of every window of a range, oldest first; changes nothing.

    Each window is seen as of one moment, so a run that works on it meanwhile does no harm.

    Raises:
        InputError: when the bounds name no range.
    """
    span = bounds.span(int(now(store).timestamp()) + 1)
    audit = Audit()
    for row in _windows(store, pipeline, span):
        window = Window(row["start_s"])
        audit.add(window, _checks(store, row | {"start_ns": window.start_ns, "end_ns": window.end_ns}))
    return audit


def _windows(store: Store, pipeline: str, span: Span) -> Iterator[Row]:
    """Yield the windows of a range, oldest first, a bounded number at a time."""
    parameters = {"pipeline": pipeline, **span.key(), "limit": _WINDOWS_AT_ONCE}
    while batch := _read(store, _NEXT_WINDOWS, parameters):
        yield from batch
        parameters["first_s"] = batch[-1]["start_s"] + 1


def _checks(store: Store, parameters: Row) -> list[Row]:
    found = _read(store, sql("window_balance"), parameters)
    return [{"check": row["name"], "expected": row["expected"], "found": row["found"]} for row in found]


def _read(store: Store, query: str, parameters: Row) -> list[Row]:
    def work(connection: Connection) -> list[Row]:
        return rows(connection, query, parameters)

    return store.transaction(work)
