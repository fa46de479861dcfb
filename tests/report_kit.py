"""A ledger with windows in every state, for reports and audits: made by the product's own writes where it has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ledger import outbox, runs
from ledger.canonical import canonical_json, utf8
from ledger.facts import Entry, RunCounts, SendAnswer
from ledger.instants import Window, parse_window
from ledger.leases import Tenure
from ledger.reports import FINDING_STATES, KINDS
from ledger.store import Store
from tests import ledger_kit as kit

DAY = "2026-09-17"
FROM, TO = f"{DAY}T00:00:00Z", "2026-09-18T00:00:00Z"
ACCEPTED = SendAnswer("accepted", message_id="m-1")
REFUSED = SendAnswer("refused", error="InvalidMessageContents: no")
HOSTILE = "=cmd|' /C calc'!A0<script>alert(1)</script>\x1b[31m\x00\r\n\t,\"quoted\"\u202eevil"
STATES = {
    10: "dispatched",
    11: "incomplete",
    12: "held",
    13: "running",
    14: "not_dispatched",
    15: "dispatched",
    16: "dispatched",
    17: "incomplete",
    18: "dispatched",
}


def hour(number: int) -> str:
    """Name a window of the day."""
    return f"{DAY}T{number:02d}:00:00Z"


@dataclass
class Planter:
    """Plants windows of one pipeline into a ledger."""

    store: Store
    pipeline: str = "reward"

    def tell(self, statement: str, *parameters: object) -> Any:
        """Change the ledger behind the product's back."""
        return self.store.transaction(lambda connection: connection.execute(statement, parameters))  # type: ignore[arg-type]

    def take(self, number: int, **options: Any) -> Tenure:
        """Get a window for a new run."""
        return kit.take(self.store, hour(number), pipeline=self.pipeline, **options)

    def open(self, tenure: Tenure, name: str, sizes: Sequence[int]) -> list[Entry]:
        """Open an entry for each size, with so many records."""
        groups = [
            kit.group([kit.record(f"{name}-{n}-{at}", tenure.window, 60 + at, group=n) for at in range(size)], n)
            for n, size in enumerate(sizes)
        ]
        opened = outbox.open_entries(self.store, tenure, groups, kit.routes(self.store, tenure))
        return [kit.uploaded(entry) for entry in opened.entries]

    def answer(self, tenure: Tenure, entries: Sequence[Entry], answer: SendAnswer) -> None:
        """Mark entries and record one answer for all of them."""
        marked = outbox.mark_sending(self.store, tenure, entries)
        outbox.record_answers(self.store, tenure, [(entry, answer) for entry in marked])

    def complete(self, tenure: Tenure, claimed: int, already: int = 0) -> None:
        """Complete a run."""
        due = claimed + already
        counts = RunCounts(evaluated=due, due=due, claimed=claimed, already_claimed=already)
        runs.complete_run(self.store, tenure, counts)

    def dispatch(self, number: int, sizes: Sequence[int] = (1, 2)) -> list[Entry]:
        """Dispatch a window wholly."""
        tenure = self.take(number)
        entries = self.open(tenure, f"w{number}", sizes)
        self.answer(tenure, entries, ACCEPTED)
        self.complete(tenure, sum(sizes))
        return entries

    def window_id(self, number: int) -> int:
        """Return the number of a window's row, made where there is none."""
        window = parse_window(hour(number))
        return self.store.transaction(
            lambda connection: runs.window_id(connection, runs.pipeline_id(connection, self.pipeline), window)
        )

    def verify(self, number: int, due: int, claimed: int) -> None:
        """Pretend that a reconcile has counted a window."""
        self.tell(
            "UPDATE windows SET verified_at = '2026-09-18T01:02:03.5Z', verified_evaluated = %s, verified_due = %s, "
            "verified_claimed = %s WHERE id = %s",
            due, due, claimed, self.window_id(number),
        )  # fmt: skip

    def find(self, number: int, kind: str, subject: str, state: str = "open", text: str = "") -> int:
        """Plant a finding."""
        values = {
            "window_id": self.window_id(number),
            "kind": kind,
            "cause": "unknown",
            "subject": utf8(subject),
            "record_id": utf8(text or subject),
            "object_key": text.replace("\0", "").encode("utf-8", "ignore").decode() or f"p/{subject}.json",
            "state": state,
            "repair": "tagged" if state == "repaired" else None,
            "detail": canonical_json({"said": text}).decode(),
            "acknowledged_by": "somebody" if state == "acknowledged" else None,
            "acknowledged_reason": "because" if state == "acknowledged" else None,
        }
        columns, marks = ", ".join(values), ", ".join(["%s"] * len(values))
        insert = (
            f"INSERT INTO findings ({columns}, pipeline_id, first_seen_at, last_seen_at) SELECT {marks}, "
            "(SELECT id FROM pipelines WHERE name = %s), ledger_now(), ledger_now() RETURNING id"
        )
        query = lambda connection: connection.execute(insert, (*values.values(), self.pipeline)).fetchone()[0]  # noqa: E731
        return int(self.store.transaction(query))

    def plant(self) -> None:
        """Plant a day with windows in every state; see `STATES`."""
        self._dispatched_with_void()
        self._incomplete()
        self.tell("UPDATE windows SET held_at = ledger_now(), held_reason = 'why' WHERE id = %s", self.window_id(12))
        self.take_long(13)
        self.find(14, "window_not_dispatched", "w14")
        self._neighbours()
        self._repeated()
        self.dispatch(18)
        self.reconcile(18)
        self.verify(10, 10, 7)
        self.verify(15, 3, 3)
        self.verify(16, 0, 0)

    def take_long(self, number: int) -> Tenure:
        """Get a window whose lease outlives the test."""
        request = kit.request(hour(number), pipeline=self.pipeline, lease=timedelta(hours=6))
        return runs.start_run(self.store, request).tenure

    def plant_findings(self, number: int = 10) -> None:
        """Plant a hostile finding of every kind in every state."""
        for kind in KINDS:
            for state in FINDING_STATES:
                self.find(number, kind, f"{kind}-{state}", state, HOSTILE)

    def _dispatched_with_void(self) -> None:
        tenure = self.take(10)
        entries = self.open(tenure, "w10", (1, 2, 4, 5))
        self.answer(tenure, entries[:3], ACCEPTED)
        self.answer(tenure, entries[3:], REFUSED)
        self.complete(tenure, 12)

    def _incomplete(self) -> None:
        tenure = self.take(11)
        entries = self.open(tenure, "w11", (1, 2, 4, 8))
        self.answer(tenure, entries[:1], ACCEPTED)
        outbox.mark_sending(self.store, tenure, entries[1:2])
        self.answer(tenure, entries[2:3], SendAnswer("failed", error="try again"))
        runs.end_run(self.store, tenure, "failed", "it broke", RunCounts())

    def _neighbours(self) -> None:
        """Both windows read a record exactly on the hour; the first gets it."""
        early, late = self.take(15), self.take(16)
        by_route = kit.routes(self.store, early)
        edge, other = kit.record("edge", late.window), kit.record("late", late.window, 5)
        for tenure, records, already in ((early, [edge], 0), (late, [edge, other], 1)):
            opened = outbox.open_entries(self.store, tenure, [kit.group(records)], by_route)
            self.answer(tenure, [kit.uploaded(entry) for entry in opened.entries], ACCEPTED)
            self.complete(tenure, opened.claimed, already)

    def _repeated(self) -> None:
        """A repeat of a completed window is cancelled."""
        self.dispatch(17)
        runs.end_run(self.store, self.take(17), "cancelled", "cancelled by signal 15", RunCounts())

    def reconcile(self, number: int) -> None:
        """Let a reconcile of a window fail; it says nothing of the dispatch."""
        request = changed(kit.request(hour(number), pipeline=self.pipeline), cause="reconcile")
        tenure = runs.start_run(self.store, request).tenure
        runs.end_run(self.store, tenure, "failed", "no answer", RunCounts())


def changed(request: runs.RunRequest, **changes: Any) -> runs.RunRequest:
    """Return a request with other fields."""
    return runs.RunRequest(**{**vars(request), **changes})


def window(number: int) -> Window:
    """Return a window of the day."""
    return parse_window(hour(number))
