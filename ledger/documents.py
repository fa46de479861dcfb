"""Rows of the ledger as plain documents, each kind in one place: whoever shows a finding shows the same fields."""

from typing import Any
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import dict_row

from ledger.instants import format_s, format_time
from ledger.store import Connection

Row = dict[str, Any]
Document = dict[str, Any]

# Begins every query for findings; `%(pipeline)s` is the pipeline's name.
FINDINGS = (
    "SELECT findings.*, windows.start_s FROM findings JOIN windows ON windows.id = findings.window_id "
    "JOIN pipelines ON pipelines.id = findings.pipeline_id WHERE pipelines.name = %(pipeline)s "
)


def rows(connection: Connection, query: Any, parameters: Row) -> list[Row]:
    """Return what a query gives, each row by the names of its columns."""
    with psycopg.Cursor(connection, row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters).fetchall()


def one_snapshot(connection: Connection) -> None:
    """Let all that this transaction reads be of one moment; to be called before it reads anything."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def plain(value: Any) -> Any:
    """Return a value as JSON has it: ids and times as text, anything else as it is."""
    if isinstance(value, UUID):
        return str(value)
    return format_time(value) if hasattr(value, "astimezone") else value


def text_of(identity: bytes | None) -> str | None:
    """Return a record id that is kept as UTF-8 bytes."""
    return None if identity is None else identity.decode("utf-8", "surrogatepass")


def finding_document(finding: Row) -> Document:
    """Return a row of `FINDINGS` as the document that every report and list shows."""
    return {
        "id": finding["id"],
        "kind": finding["kind"],
        "cause": finding["cause"],
        "window": format_s(finding["start_s"]),
        "record_id": text_of(finding["record_id"]),
        "entry_id": plain(finding["entry_id"]),
        "object_key": finding["object_key"],
        "state": finding["state"],
        "repair": finding["repair"],
        "first_seen_at": plain(finding["first_seen_at"]),
        "detail": msgspec.Raw(finding["detail"].encode()),
    }
