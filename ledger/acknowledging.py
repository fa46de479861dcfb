"""A person takes note of a finding: who, why, and only once."""

from dataclasses import dataclass

from ledger.canonical import is_plain_text
from ledger.documents import FINDINGS, Document, Row, finding_document, rows
from ledger.errors import GuardError, InputError, NotFoundError
from ledger.store import Connection, Store, sql

TEXT_MAX = 1000


@dataclass(frozen=True)
class Note:
    """Who acknowledges a finding, and why it needs nothing more; made by `parse_note`."""

    by: str
    reason: str


def parse_note(by: str, reason: str) -> Note:
    """Check a name and a reason: 1 to 1,000 characters each, blanks around them left out.

    Raises:
        InputError: when one is missing, too long, or no text.
    """
    return Note(_text("--by", by), _text("--reason", reason))


def acknowledge(store: Store, pipeline: str, finding_id: int, note: Note) -> Document:
    """Acknowledge an open finding; safe to repeat: the first name and reason are kept.

    Returns:
        The finding's document, with `acknowledged_by` and `acknowledged_reason`.

    Raises:
        NotFoundError: when the pipeline has no such finding.
        GuardError: when it has been repaired or closed, so that there is nothing to acknowledge.
    """
    key = {"pipeline": pipeline, "id": finding_id, "by": note.by, "reason": note.reason}

    def work(connection: Connection) -> Row | None:
        connection.execute(sql("acknowledge_finding"), key)
        found = rows(connection, FINDINGS + "AND findings.id = %(id)s", key)
        return found[0] if found else None

    finding = store.transaction(work)
    if finding is None:
        raise NotFoundError(
            f"no finding {finding_id} in the ledger of pipeline {pipeline}; see: dispatch-ledger findings list"
        )
    if finding["state"] != "acknowledged":
        raise GuardError(f"finding {finding_id} is {finding['state']} already; there is nothing to acknowledge")
    return finding_document(finding) | {name: finding[name] for name in ("acknowledged_by", "acknowledged_reason")}


def _text(option: str, given: str) -> str:
    text = given.strip()
    if not text:
        raise InputError(f"{option} is empty; say it in a few words")
    if len(text) > TEXT_MAX:
        raise InputError(f"{option} has {len(text)} characters; {TEXT_MAX} are allowed")
    if not is_plain_text(text):
        raise InputError(f"{option} is not plain text in UTF-8")
    return text
