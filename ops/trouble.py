"""The second half of the demo: trouble of every kind, made on purpose, and what a reconcile does about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.text import Text

from dispatch.aws.queues import Message, Queue, SqsQueues
from dispatch.aws.sandbox import Sandbox
from dispatch.dispatcher import Dispatcher
from dispatch.items import Item
from ledger import acknowledging, clock
from ledger.facts import RunCounts, SendAnswer
from ledger.instants import Window, format_time, parse_window
from ledger.keys import window_prefix
from ops import views
from reconcile.reconciler import Reconciler, Report, report_document
from reconcile.rescan import Options

_BEFORE, AFTER = parse_window("2026-09-17T14:00:00Z"), parse_window("2026-09-17T15:00:00Z")
_CHANGED_AT = "UpdatedAt"
_MEANINGS = {
    "missed": "due, but never promised: sent alone, without its group that went before",
    "moved_in": "it changed after its page was read, while the run read on",
    "late_insert": "it came after the run was over",
    "unfinished": "sent by a run that died before it knew: finished, under the same idempotency key",
    "missing_object": "the job's object was gone: put together again from the table, and it has the same hash",
    "orphan_object": "nobody refers to this object: tagged, not removed",
    "duplicate": "that job may be there twice now; a consumer that keeps its keys works it once",
}


class _DiedError(BaseException):
    """The process is gone, as far as the demo can be."""


class _DyingQueues(SqsQueues):
    """Sends, and does not live to hear of it."""

    def __init__(self, living: SqsQueues) -> None:
        self.__dict__ |= living.__dict__

    def send(self, queue: Queue, messages: Sequence[Message], before_call: Callable[[], None]) -> list[SendAnswer]:
        super().send(queue, messages, before_call)
        raise _DiedError


@dataclass
class Trouble:
    """Makes trouble in the windows of the seed records, and has it mended.

    Attributes:
        seed: the seed records, by id.
    """

    dispatcher: Dispatcher
    sandbox: Sandbox
    console: Console
    seed: dict[str, Item]

    def tell(self, heading: Callable[[Console, str], None]) -> dict[str, Any]:
        """Make it, show it, reconcile twice; returns the documents.

        Raises:
            CancelledError: when a signal asked; each step needs what the one before it left.
        """
        heading(self.console, "6 · Trouble, made on purpose")
        for make in (self._die, self._move, self._come_late, self._drop_an_object, self._leave_an_orphan):
            self.dispatcher.cancellation.check()
            self.console.print(f"- {make()}")
        heading(self.console, "7 · Reconcile: back to the source")
        first = self.reconcile()
        self._show(first)
        self._acknowledge(first)
        heading(self.console, "8 · Once more: nothing is left to find, nothing is sent")
        second = self.reconcile()
        views.show_reconcile(self.console, second)
        return {"reconcile": report_document(first), "second_reconcile": report_document(second)}

    def _die(self) -> str:
        self.dispatcher.dispatch(_BEFORE, "manual")
        self.load("R8", "R0", "2026-09-17T14:30:00Z")
        partners = self.dispatcher.partners
        dying = replace(self.dispatcher, partners=replace(partners, sqs=_DyingQueues(partners.sqs)))
        try:
            dying.dispatch(_BEFORE, "manual")
        except _DiedError:
            return "R8 is sent by a run that dies between the send and the confirmation."
        self.dispatcher.cancellation.check()
        raise AssertionError("R8 was to be sent")

    def _move(self) -> str:
        """Dispatch once more, in small pages; a record moves into the first while the second is being read."""
        moved = False

        def on_progress(counts: RunCounts) -> None:
            nonlocal moved
            if counts.pages > 1 and not moved:
                moved = True
                self.load("R6", "R6", "2026-09-17T15:01:00Z")

        settings = self.dispatcher.settings
        small = settings.dispatch.model_copy(update={"page_size": 2})
        own = settings.model_copy(update={"dispatch": small})
        replace(self.dispatcher, settings=own, on_progress=on_progress).dispatch(AFTER, "manual")
        return "R6 is rebooked to 15:01 while a run is past that time already: moved behind its cursor."

    def _come_late(self) -> str:
        self.load("R7", "R1", "2026-09-17T15:10:00Z")
        return "R7 is booked for 15:10, of the same group as R1 and R2, after the runs are over."

    def _drop_an_object(self) -> str:
        key = min(self.sandbox.list_objects(self._place(AFTER)))
        self.sandbox.remove_object(key)
        return f"The object {key[-24:]} of a job is deleted."

    def _leave_an_orphan(self) -> str:
        self.sandbox.put_object(f"{self._place(AFTER)}left-behind.json", b"{}")
        return "An object that belongs to nobody, left-behind.json, lies among the others."

    def load(self, record_id: str, like: str, time: str) -> None:
        """Put a record into the table that is like one of the seed's, booked for `time`; an id that is there moves."""
        source = self.dispatcher.settings.source
        changed = {
            "Id": {"S": record_id},
            source.date_attribute: {"S": time[:10]},
            source.time_attribute: {"S": time},
            _CHANGED_AT: {"S": format_time(clock.utc_now())},
        }
        self.sandbox.load([self.seed[like] | changed])

    def _place(self, window: Window) -> str:
        settings = self.dispatcher.settings
        return window_prefix(settings.objects.prefix, settings.pipeline, window)

    def reconcile(self) -> Report:
        """Reconcile both windows, without any grace."""
        settings = self.dispatcher.settings
        at_once = settings.reconcile.model_copy(update={"orphan_grace": timedelta()})
        source = settings.source.model_copy(update={"updated_at_attribute": _CHANGED_AT})
        own = replace(self.dispatcher, settings=settings.model_copy(update={"source": source}))
        return Reconciler(own, Options(at_once, grace=timedelta())).reconcile([_BEFORE, AFTER])

    def _show(self, report: Report) -> None:
        for window in report.windows:
            for one in window.findings:
                name = " · ".join(str(one[part]) for part in ("kind", "cause", "record_id") if one[part])
                state = f"{one['state']} ({one['repair']})" if one["repair"] else one["state"]
                self.console.print(Text.assemble((views.plain_text(name), "bold"), "  ", views.styled(state)))
                meanings = [_MEANINGS[part] for part in (one["cause"], one["kind"]) if part in _MEANINGS]
                self.console.print(Text(f"    {'; '.join(meanings)}", style="dim"))

    def _acknowledge(self, report: Report) -> None:
        """Do what a person does with the one finding that no program can decide."""
        note = acknowledging.parse_note("demo", "the consumer keeps the keys that it has worked")
        for window in report.windows:
            for one in window.findings:
                if one["state"] == "open":
                    acknowledging.acknowledge(self.dispatcher.store, self.dispatcher.settings.pipeline, one["id"], note)
                    self.console.print(f"A person acknowledges {one['kind']} {one['id']}: {note.reason}.")
