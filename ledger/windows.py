"""How far a pipeline's windows have come, and which of them wait for a person: held, and released with who and why."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from ledger.acknowledging import Note
from ledger.errors import GuardError
from ledger.facts import HoldKind
from ledger.holds import held
from ledger.instants import Window
from ledger.leases import Tenure, check_fence, raise_seq
from ledger.runs import pipeline_id, window_id
from ledger.store import Connection, Store, sql
from ledger.witness import FoundWitness, contradiction

# Holds for which `consume` waits, and a neighbour's run too: what was promised in the window is not known again yet.
FORGOTTEN: frozenset[HoldKind] = frozenset({"behind", "adopting"})


class HowFar(msgspec.Struct, frozen=True):
    """How far a window has come in this ledger, and why it is held.

    Attributes:
        seq: 0 for one that the ledger has never heard of.
        held_kind, held_reason: None while it is not held.
    """

    seq: int = 0
    held_kind: HoldKind | None = None
    held_reason: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """Which ledger this is, and where the objects of a pipeline may lie.

    Attributes:
        ledger_id: made once, with the tables; a copy of the ledger bears the same.
        places: every bucket and prefix that entries of the pipeline were ever promised to.
    """

    ledger_id: UUID
    places: list[tuple[str, str]]


def read_origin(store: Store, pipeline: str) -> Origin:
    """Return which ledger this is, and where it has ever stored objects of a pipeline."""
    query = (
        "SELECT DISTINCT bucket, prefix FROM destinations JOIN pipelines ON pipelines.id = pipeline_id "
        "WHERE pipelines.name = %s ORDER BY bucket, prefix"
    )

    def work(connection: Connection) -> Origin:
        row = connection.execute("SELECT ledger_id FROM ledger_identity").fetchone()
        assert row is not None, "it was made with the tables"
        places = connection.execute(query, (pipeline,)).fetchall()
        return Origin(row[0], [(bucket, prefix) for bucket, prefix in places])

    return store.transaction(work)


def how_far(store: Store, pipeline: str, windows: Iterable[Window] | None = None) -> dict[Window, HowFar]:
    """Return how far these windows have come, or all; those that the ledger has never heard of are missing.

    Whoever compares it with witnesses without a lease must have read those before.
    """
    wanted = None if windows is None else list(windows)
    return store.transaction(lambda connection: _how_far(connection, pipeline, wanted))


def _how_far(connection: Connection, pipeline: str, windows: Sequence[Window] | None) -> dict[Window, HowFar]:
    query = (
        "SELECT start_s, seq, CASE WHEN held_at IS NOT NULL THEN coalesce(held_kind, 'guard') END, held_reason "
        "FROM windows JOIN pipelines ON pipelines.id = pipeline_id "
        "WHERE pipelines.name = %(pipeline)s AND (%(all)s OR start_s = ANY(%(starts)s::bigint[]))"
    )
    starts = [one.start_s for one in windows or ()]
    found = connection.execute(query, {"pipeline": pipeline, "all": windows is None, "starts": starts})
    return {Window(start_s): HowFar(*rest) for start_s, *rest in found}


def enter(
    store: Store, tenure: Tenure, beside: Mapping[Window, Sequence[FoundWitness]], identity: UUID, floor: int = 0
) -> dict[Window, str]:
    """Count the run that has just got the window, unless a neighbour, which shares the records on the hour, is behind.

    Safe to repeat.

    Args:
        beside: the witnesses of both neighbours, read before.
        floor: the number to come above, for a window whose witness bears a greater one and which a person lets go on.

    Returns:
        Which neighbours are behind, and why; they are held then, and nothing was counted.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    seq = max(tenure.progress.seq, floor) + 1

    def work(connection: Connection) -> dict[Window, str]:
        check_fence(connection, tenure)
        known = _how_far(connection, tenure.pipeline, list(beside))
        behind = _behind(beside, known, identity)
        if not behind:
            raise_seq(connection, tenure, seq)
            checked = "UPDATE windows SET objects_checked_at = coalesce(objects_checked_at, ledger_now()) WHERE id = %s"
            connection.execute(checked, (tenure.window_id,))
        for window, reason in behind.items():
            _hold_unleased(connection, tenure.pipeline_id, window, "behind", reason, None)
        return behind

    behind = store.transaction(work)
    if not behind:
        tenure.progress.seq = seq
    return behind


def _behind(
    beside: Mapping[Window, Sequence[FoundWitness]], known: Mapping[Window, HowFar], identity: UUID
) -> dict[Window, str]:
    """Say which windows are behind their witnesses; not those whose objects have been adopted since."""
    behind: dict[Window, str] = {}
    for window, found in beside.items():
        now = known.get(window, HowFar())
        reason = contradiction(found, now.seq, identity)
        if reason is not None and now.held_kind != "adopted":
            behind[window] = reason
    return behind


def hold(store: Store, tenure: Tenure, kind: HoldKind, reason: str) -> None:
    """Hold the window that a run works on for a person; safe to repeat.

    Raises:
        LeaseLostError: when the window is no longer this run's; it is not held then.
        GuardError: when it is held already, and this run does not work on held windows.
    """
    update = (
        "UPDATE windows SET held_at = coalesce(held_at, ledger_now()), held_reason = %(reason)s, held_kind = %(kind)s "
        "WHERE id = %(id)s AND (held_reason, held_kind) IS DISTINCT FROM (%(reason)s, %(kind)s) RETURNING 1"
    )
    parameters = {"id": tenure.window_id, "reason": reason, "kind": kind}

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        if connection.execute(update, parameters).fetchone() is not None and kind != "adopting":
            event = "adopted" if kind == "adopted" else "held"
            _note(connection, tenure.pipeline_id, tenure.window_id, event, reason, run_id=tenure.run_id)
        if kind in {"behind", "adopted"}:
            _note_restored(connection, tenure.pipeline_id)

    store.transaction(work)


def hold_behind(store: Store, tenure: Tenure, reason: str) -> GuardError:
    """Hold a window whose witness contradicts this ledger; returns the error to raise.

    Raises:
        LeaseLostError: when the window is no longer this run's: then nothing is wrong with the ledger.
    """
    hold(store, tenure, "behind", reason)
    return held(tenure.window, reason, "behind")


def hold_if_behind(
    store: Store, pipeline: str, found: Mapping[Window, Sequence[FoundWitness]], identity: UUID
) -> dict[Window, str]:
    """Hold those of these windows that are behind their witnesses, which were read before; returns which, and why.

    Windows that wait for a person after an adoption are left as they are.
    """

    def work(connection: Connection) -> dict[Window, str]:
        number = pipeline_id(connection, pipeline)
        behind = _behind(found, _how_far(connection, pipeline, list(found)), identity)
        for window, reason in behind.items():
            _hold_unleased(connection, number, window, "behind", reason, None)
        return behind

    return store.transaction(work)


def find_behind(
    store: Store, pipeline: str, found: Mapping[Window, Sequence[FoundWitness]], identity: UUID
) -> dict[Window, str]:
    """Say which of these windows are behind their witnesses, which were read before, and why; nothing is changed."""
    return _behind(found, how_far(store, pipeline, found), identity)


def hold_by_person(store: Store, pipeline: str, windows: Sequence[Window], note: Note) -> list[Window]:
    """Hold windows because a person wants it; a run that works on one ends at its next step. Safe to repeat.

    Returns:
        Those that were not held before.
    """

    def work(connection: Connection) -> list[Window]:
        number = pipeline_id(connection, pipeline)
        return [one for one in windows if _hold_unleased(connection, number, one, "person", note.reason, note.by)]

    return store.transaction(work)


def _hold_unleased(
    connection: Connection, pipeline: int, window: Window, kind: HoldKind, reason: str, by: str | None
) -> bool:
    """Hold a window without its lease; returns whether that is new.

    What a person wants held, and what is behind, is not put in the place of an adoption that has begun.
    """
    row = window_id(connection, pipeline, window)
    parameters = {"id": row, "kind": kind, "reason": reason}
    if connection.execute(sql("hold_window"), parameters).fetchone() is None:
        return False
    _note(connection, pipeline, row, "held", reason, by=by)
    if kind == "behind":
        _note_restored(connection, pipeline)
    return True


def release(store: Store, tenure: Tenure, note: Note) -> None:
    """Let a held window be worked on again: a person has looked. Safe to repeat.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    update = (
        "UPDATE windows SET held_at = NULL, held_reason = NULL, held_kind = NULL "
        "WHERE id = %s AND held_at IS NOT NULL RETURNING 1"
    )

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        if connection.execute(update, (tenure.window_id,)).fetchone() is not None:
            _note(connection, tenure.pipeline_id, tenure.window_id, "released", note.reason, note.by, tenure.run_id)

    store.transaction(work)


def vouch(store: Store, tenure: Tenure, note: Note) -> int:
    """Confirm the window's entries whose send is unknown, on a person's word. Safe to repeat.

    Returns:
        How many are confirmed by it now.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    parameters = {"window_id": tenure.window_id, "note": f"sent, on the word of {note.by}: {note.reason}"}

    def work(connection: Connection) -> int:
        check_fence(connection, tenure)
        vouched = len(connection.execute(sql("vouch_entries"), parameters).fetchall())
        if vouched:
            said = f"{vouched} of its jobs count as sent: {note.reason}"
            _note(connection, tenure.pipeline_id, tenure.window_id, "vouched", said, note.by, tenure.run_id)
            _note_restored(connection, tenure.pipeline_id)
        return vouched

    return store.transaction(work)


def note_restored(store: Store, pipeline: str) -> None:
    """Remember that this ledger was put back: receipts of what was sent until now may be missing, whatever else is."""
    store.transaction(lambda connection: _note_restored(connection, pipeline_id(connection, pipeline)))


def _note_restored(connection: Connection, pipeline: int) -> None:
    connection.execute("UPDATE pipelines SET restored_at = ledger_now() WHERE id = %s", (pipeline,))


def _note(
    connection: Connection,
    pipeline: int,
    window: int,
    event: str,
    reason: str,
    by: str | None = None,
    run_id: UUID | None = None,
) -> None:
    insert = (
        "INSERT INTO events (pipeline_id, window_id, at, event, by, reason, run_id) "
        "VALUES (%s, %s, ledger_now(), %s, %s, %s, %s)"
    )
    connection.execute(insert, (pipeline, window, event, by, reason, run_id))
