"""`show record`: why a record was dispatched, or why not, in one screen."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from ledger.documents import Document
from ledger.errors import DispatchLedgerError
from ledger.history import record_history
from ledger.settings import Settings
from ledger.store import Store
from ops import views, wiring
from ops.context import CONTEXT

if TYPE_CHECKING:
    from dispatch.explaining import Answer
    from dispatch.lookup import Sighting

_CELL_CHARS_MAX = 200


def add_to(app: typer.Typer) -> None:
    """Hang the command below `show`."""
    app.command("record", epilog="Example: dispatch-ledger show record R1")(show_record)


def show_record(record_id: Annotated[str, typer.Argument(help="The record's id: its table key.")]) -> None:
    """Tell why a record was dispatched, or why not: the source now, its claims, entries, receipts and findings."""
    settings = CONTEXT.settings()
    seen = _ask_from_here(settings, record_id)
    with wiring.ledger(settings) as store:
        document = record_document(settings, store, seen)
    if CONTEXT.json:
        CONTEXT.print_json(document)
    else:
        _show(CONTEXT.console, document)


def record_document(settings: Settings, store: Store, seen: "Sighting") -> Document:
    """Return the story of a record, given what the source has said of it.

    The source is asked first, so that what is claimed in between is not taken for missed. When it could not be asked,
    the document says so and has the ledger's part all the same.

    Raises:
        UnavailableError: when the ledger does not answer.
    """
    from dispatch.explaining import explain

    story, facts = record_history(store, settings.pipeline, seen.record_id, seen.windows, seen.group_digest)
    answer = explain(seen, facts, settings)
    head = {name: story.pop(name) for name in ("record_id", "pipeline")}
    return {**head, "answer": answer.sentence, "reason": answer.reason, "source": _source(seen, answer), **story}


def _ask_from_here(settings: Settings, record_id: str) -> "Sighting":
    from dispatch.lookup import Lookup, not_asked

    try:
        with wiring.aws_endpoint(settings) as endpoint:
            return Lookup(settings, endpoint).ask(record_id)
    except DispatchLedgerError as error:  # the emulator does not start
        return not_asked(record_id, error)


def _source(seen: "Sighting", answer: "Answer") -> Document:
    return {
        "found": seen.found,
        "verdict": seen.verdict,
        "why": seen.why,
        "booking_time": seen.booking_time,
        "status": seen.status,
        "window": None if answer.window is None else answer.window.name,
        "windows": [one.name for one in seen.windows],
        "error": seen.error,
    }


def _show(console: Console, document: Document) -> None:
    source = document["source"]
    now = [source["verdict"].replace("_", " "), source["error"] or source["why"]]
    facts = [
        ("answer", document["answer"]),
        ("source now", ": ".join(one for one in now if one)),
        ("booked for", source["booking_time"]),
        ("status", source["status"]),
        ("read by", ", ".join(source["windows"]) or None),
    ]
    views.show_facts(console, f"record {views.plain_text(document['record_id'])} · {document['pipeline']}", facts)
    occurrences = [_occurrence(one) for one in document["occurrences"]]
    columns = {"booked": "booked for", "generation": "generation", "state": "state", "job": "job"}
    columns |= {"attempts": "tries", "confirmed_at": "confirmed", "entry_id": "entry"}
    views.show_rows(console, "claims", occurrences, columns)
    receipts = [_receipt(one["entry"]) for one in document["occurrences"] if one["entry"] and one["entry"]["receipt"]]
    columns = {"entry_id": "entry", "state": "state", "worker": "worker", "attempts": "tries"}
    columns |= {"claimed_at": "claimed", "finished_at": "finished", "said": "result or reason"}
    views.show_rows(console, "receipts", receipts, columns)
    columns = {"id": "id", "kind": "kind", "cause": "cause", "state": "state", "detail": "detail"}
    views.show_rows(console, "findings", document["findings"], columns)
    views.show_events(console, document["events"])


def _occurrence(one: Document) -> dict[str, Any]:
    lost = {"state": "entry not in the ledger"}
    return {"booked": one["booking_time"], "generation": one["generation"]} | (one["entry"] or lost)


def _receipt(entry: Document) -> dict[str, Any]:
    receipt = entry["receipt"]
    result = receipt["result"]
    said = receipt["reason"] or (bytes(result).decode() if isinstance(result, msgspec.Raw) else "")
    return {"entry_id": entry["entry_id"], **receipt, "said": said[:_CELL_CHARS_MAX]}
