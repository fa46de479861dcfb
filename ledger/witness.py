"""How far a window has come, as it is kept a second time beside the objects, and what that says of this ledger. Pure.

The first time it is kept is `windows.seq`. A ledger that was put back to an earlier state has a smaller number than the
witness; another ledger that works under the same name has another id.
"""

from collections.abc import Iterable
from uuid import UUID

import msgspec

from ledger.errors import CorruptError, InputError
from ledger.instants import Window, parse_window

FOLDER = "_ledger/"


class Witness(msgspec.Struct, frozen=True):
    """What a run has written beside the objects of its window.

    Attributes:
        seq: how far the window had come in the ledger by then.
        ledger_id: which ledger that was.
        run_id: of the run that wrote it.
        at: when, on the clock of its machine, RFC 3339.
    """

    seq: int
    ledger_id: UUID
    run_id: UUID
    at: str


class FoundWitness(msgspec.Struct, frozen=True):
    """A witness, where it lies and as which version of the object."""

    bucket: str
    key: str
    etag: str
    witness: Witness

    @property
    def place(self) -> str:
        """Where it lies, for people."""
        return f"s3://{self.bucket}/{self.key}"


def witness_folder(prefix: str, pipeline: str) -> str:
    """Return what the keys of all witnesses of a pipeline begin with."""
    return f"{prefix}{FOLDER}{pipeline}/"


def witness_key(prefix: str, pipeline: str, window: Window) -> str:
    """Return the key of a window's witness."""
    return f"{witness_folder(prefix, pipeline)}{window.name}.json"


def window_of_key(folder: str, key: str) -> Window | None:
    """Read back from a key below `folder` whose witness it is; None when it is none."""
    try:
        return parse_window(key.removeprefix(folder).removesuffix(".json"))
    except InputError:
        return None


def encode_witness(witness: Witness) -> bytes:
    """Return a witness as its object holds it."""
    return msgspec.json.encode(witness)


def decode_witness(body: bytes, place: str) -> Witness:
    """Read a witness.

    Raises:
        CorruptError: when it is none: nothing can be concluded from that.
    """
    try:
        return msgspec.json.decode(body, type=Witness)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"{place} is not a witness of this product ({error}); nothing is sent before a person has looked at it: "
            "remove it to have the window's objects compared instead"
        ) from None


def contradiction(found: Iterable[FoundWitness], seq: int, ledger_id: UUID) -> str | None:
    """Say why a ledger that has come as far as `seq` cannot be the one that wrote all of these; None when it may be.

    Args:
        found: the witnesses of one window, from every place where its objects may lie.
    """
    for one in found:
        if one.witness.ledger_id != ledger_id:
            return (
                f"its witness {one.place} was written by another ledger ({one.witness.ledger_id}, not {ledger_id}): "
                "another one works under this pipeline and prefix, or did before this one was made"
            )
        if one.witness.seq > seq:
            return (
                f"its witness {one.place} bears number {one.witness.seq}, and this ledger has only come to {seq}: "
                "it was put back to an earlier state"
            )
    return None
