"""What can be measured at a moment: a few bounded questions to the ledger, answered within seconds or not at all."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from ledger import clock
from ledger.documents import Row, rows
from ledger.runs import owed_in
from ledger.store import Connection, Store, sql

# The answer to one question is not waited for any longer.
_STATEMENT = "SET LOCAL statement_timeout = '3s'"
_ATTEMPTS_WITHIN = timedelta(hours=1)
# Windows that are owed are counted no further back than this, whatever `schedule.catch_up` says.
_OWED_WITHIN = timedelta(days=366)
_FINDINGS = (
    "SELECT kind, state, count(*) AS findings FROM findings JOIN pipelines ON pipelines.id = pipeline_id "
    "WHERE pipelines.name = %(pipeline)s GROUP BY kind, state"
)
_REFUSALS = (
    "SELECT kind, refused FROM refusals JOIN pipelines ON pipelines.id = pipeline_id "
    "WHERE pipelines.name = %(pipeline)s"
)
_WINDOWS = (
    "SELECT max(completed_at) AS dispatched_at, max(verified_at) AS reconciled_at, "
    "count(*) FILTER (WHERE held_at IS NOT NULL) AS held, "
    "count(*) FILTER (WHERE held_at IS NOT NULL AND held_kind IN ('behind', 'adopting')) AS behind FROM windows "
    "JOIN pipelines ON pipelines.id = pipeline_id WHERE pipelines.name = %(pipeline)s"
)


@dataclass(frozen=True)
class Gauges:
    """The numbers of one pipeline, as of one moment.

    Attributes:
        jobs: those that have not ended: queue, status, how many, age of the oldest in seconds.
        unfinished, oldest_entry_s: entries that were never confirmed, and the age of the oldest.
        owed: closed windows that no dispatch has completed.
        held: windows that wait for a person.
        behind: those of them whose witness shows that this ledger has forgotten something, or is not alone.
        dispatched_at, reconciled_at: when either last came to its end for a window.
        findings: how many by kind and state.
        attempts: tries to send entries opened in the last hour, by outcome; of all pipelines.
        refusals: writes that a fence has refused since the ledger was made, by kind of fence.
    """

    jobs: list[tuple[str, str, int, float]]
    unfinished: int
    oldest_entry_s: float
    owed: int
    held: int
    behind: int
    dispatched_at: datetime | None
    reconciled_at: datetime | None
    findings: dict[tuple[str, str], int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)


def read_gauges(store: Store, pipeline: str, catch_up: timedelta, not_before: datetime | None) -> Gauges:
    """Read all gauges.

    Raises:
        UnavailableError: when the ledger does not answer, or takes longer than three seconds for one question.
    """

    def work(connection: Connection) -> Gauges:
        connection.execute(_STATEMENT)
        key = {"pipeline": pipeline, "since": _first_id(_ATTEMPTS_WITHIN)}
        (entries,), (windows,) = rows(connection, sql("gauge_entries"), key), rows(connection, _WINDOWS, key)
        return Gauges(
            jobs=[_job_gauge(row) for row in rows(connection, sql("gauge_jobs"), key)],
            unfinished=entries["unfinished"],
            oldest_entry_s=entries["oldest_s"] or 0.0,
            owed=len(owed_in(connection, pipeline, min(catch_up, _OWED_WITHIN), not_before)),
            held=windows["held"],
            behind=windows["behind"],
            dispatched_at=windows["dispatched_at"],
            reconciled_at=windows["reconciled_at"],
            findings={(row["kind"], row["state"]): row["findings"] for row in rows(connection, _FINDINGS, key)},
            attempts={row["outcome"]: row["attempts"] for row in rows(connection, sql("gauge_attempts"), key)},
            refusals={row["kind"]: row["refused"] for row in rows(connection, _REFUSALS, key)},
        )

    return store.transaction(work)


def _job_gauge(row: Row) -> tuple[str, str, int, float]:
    return row["queue"], row["status"], row["jobs"], row["oldest_s"]


def _first_id(ago: timedelta) -> UUID:
    """Return an id that sorts right before those made since then."""
    return UUID(int=int((clock.utc_now() - ago).timestamp() * 1000) << 80)
