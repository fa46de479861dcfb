"""A reconcile that says what it would find and mend: the usual one, on a private copy of the ledger."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dispatch.dry_run import DryDispatcher
from ledger.acknowledging import Note
from ledger.dry_run import FIRST_NEW_ID
from ledger.errors import DispatchLedgerError
from ledger.evidence import WindowFacts
from ledger.facts import FindingState
from ledger.instants import Window
from reconcile.reconciler import Reconciler, Report, WindowReport


@dataclass
class DryReconciler(Reconciler):
    """Says of windows, one after another, what reconciling them would find, mend and close."""

    dispatcher: DryDispatcher

    def reconcile(self, windows: Iterable[Window], *, release: Note | None = None) -> Report:
        """Say what a reconcile of these windows would do, in the order given."""
        report = super().reconcile(windows, release=release)
        report.dry_run = True
        return report

    def reconcile_window(
        self, window: Window, *, release: Note | None = None, run_id: UUID | None = None
    ) -> WindowReport:
        """Say what a reconcile of one window would do; a failure is in the report, not raised."""
        report = super().reconcile_window(window, release=release, run_id=run_id)
        store = self.dispatcher.store
        try:
            now = store.states_now([one["id"] for one in report.findings])
            report.would_close = store.count_closed()
        except DispatchLedgerError as error:
            report.error = report.error or error
            now = {}
        report.findings = [would_be(one, now.get(one["id"])) for one in report.findings]
        return report

    def _facts(self, window: Window) -> WindowFacts:
        self.dispatcher.take(window)
        return super()._facts(window)


def would_be(finding: dict[str, Any], now: FindingState | None) -> dict[str, Any]:
    """Tell of a finding how it is, and how a reconcile would leave it. Pure.

    Args:
        finding: its document, as a reconcile would leave it.
        now: its state in the ledger; None when it is not there yet, or has just been taken from there.
    """
    new, would = finding["id"] >= FIRST_NEW_ID, finding["state"]
    if now not in {"open", "acknowledged"}:
        now = "acknowledged" if would == "acknowledged" else "open"
    return finding | {
        "id": None if new else finding["id"],
        "first_seen_at": None if new else finding["first_seen_at"],
        "state": now,
        "repair": None,
        "would_be": would,
        "would_repair": finding["repair"] if would == "repaired" else None,
    }
