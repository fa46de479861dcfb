"""The last part of the demo: an old copy of the ledger is put back, which has forgotten a job that was sent since."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from dispatch.dispatcher import Dispatcher, RunReport, run_document
from ledger import acknowledging, copies
from ops import views
from ops.trouble import AFTER, Trouble
from reconcile.adopt import adoption_document
from reconcile.reconciler import report_document
from reconcile.restored import decide, decided_document, recover_restored

_JOBS_MAX = 1000


@dataclass
class OldLedger:
    """Puts a ledger back to an earlier state, and gets out of it as a person does.

    Attributes:
        trouble: the windows and records to do it with, all well again.
    """

    trouble: Trouble

    def tell(self, heading: Callable[[Console, str], None]) -> dict[str, Any]:
        """Do it, step by step; returns the documents.

        Raises:
            CancelledError: when a signal asked; each step needs what the one before it left.
        """
        heading(self._console, "9 · An old ledger is put back: it knows less than was sent")
        self._take_jobs()
        copy = copies.keep_copy(self._dispatcher.store)
        sent = self._send()
        self._dispatcher.cancellation.check()
        copies.put_back(self._dispatcher.store, copy)
        self._say("The copy is put in the ledger's place. It has never heard of R9, and R9 still waits in the table.")
        held = self._be_held()
        decided = self._get_out()
        heading(self._console, "10 · All is well: every record in one job, and the old ledger has sent nothing twice")
        return {"sent": run_document(sent), "held": run_document(held), **decided, **self._end()}

    def _send(self) -> RunReport:
        self.trouble.load("R9", "R3", "2026-09-17T15:20:00Z")
        report = self._dispatcher.dispatch(AFTER, "manual")
        self._say(f"The ledger is copied. Then R9 is booked for 15:20 and dispatched: {_shown(report)}.")
        return report

    def _be_held(self) -> RunReport:
        report = self._dispatcher.dispatch(AFTER, "manual")
        self._say(f"The next dispatch is {report.outcome}, {_jobs(report.counts.confirmed)} sent:")
        self._console.print(Text(f"    {views.plain_text(str(report.error))}", style="dim"), soft_wrap=True)
        self._dispatcher.cancellation.check()
        return report

    def _get_out(self) -> dict[str, Any]:
        """Do what the error says, and give a person's word for what no object can prove."""
        adoption = recover_restored(self._dispatcher)
        self._dispatcher.cancellation.check()
        adopted = sum(one.entries for one in adoption.windows)
        proves = "an object proves a promise, not that it was sent"
        self._say(f"recover --restored adopts {_jobs(adopted)} from the objects: {proves}.")
        note = acknowledging.parse_note("demo", "it is in the queue")
        decided = decide(self._dispatcher, AFTER, "sent", note)
        self._say(
            f"A person has looked, and says --as sent ({note.reason}): {_jobs(decided.vouched)} taken for sent, "
            f"{_jobs(decided.unfinished)} to be sent again."
        )
        return {"recovered": adoption_document(adoption), "decided": decided_document(decided)}

    def _end(self) -> dict[str, Any]:
        report = self._dispatcher.dispatch(AFTER, "manual")
        self._say(f"The dispatch after that is {report.outcome}: {_shown(report)}.")
        taken = self._take_jobs()
        self._say(f"The queues have got {_jobs(taken)} since the copy was kept.")
        document = report_document(self.trouble.reconcile())
        due, claimed = (sum(one["coverage"][name] for one in document["windows"]) for name in ("due", "claimed"))
        self._say(
            f"A reconcile finds {due} records due and {claimed} claimed, {document['open']} findings open and "
            f"{document['repaired']} repaired."
        )
        return {"last": run_document(report), "jobs": taken, "reconcile": document}

    def _take_jobs(self) -> int:
        """Take all messages from the queues; returns how many there were."""
        sandbox = self.trouble.sandbox
        return sum(len(sandbox.receive(queue, _JOBS_MAX)) for queue in sandbox.queue_names())

    def _say(self, text: str) -> None:
        self._console.print(f"- {text}")

    @property
    def _dispatcher(self) -> Dispatcher:
        return self.trouble.dispatcher

    @property
    def _console(self) -> Console:
        return self.trouble.console


def _shown(report: RunReport) -> str:
    counts = report.counts
    return f"{counts.due} due, {counts.already_claimed} of them claimed before, {_jobs(counts.confirmed)} sent"


def _jobs(number: int) -> str:
    return f"{number} job" if number == 1 else f"{number} jobs"
