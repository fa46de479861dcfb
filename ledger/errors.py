"""The errors of the whole product, told apart by what the caller should do next.

Each class carries the exit code of the command line (CONTRACT: exit codes). A message is one line: what was wrong,
where, and what to do about it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal
from uuid import UUID


@dataclass(frozen=True)
class Refusal:
    """A write that a fence has refused, as the ledger counts it.

    Attributes:
        kind: the fence: a `window`'s lease, or the claim on a `job` or a `receipt`.
        pipeline, job_id: whose; one of them.
    """

    kind: Literal["window", "job", "receipt"]
    pipeline: str | None = None
    job_id: UUID | None = None


class DispatchLedgerError(Exception):
    """Base of every error that the product raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the message on one line, whatever a driver put into it."""
        return " ".join(super().__str__().split())


class InputError(DispatchLedgerError):
    """The request or the configuration is wrong; repeating it cannot help. Exit 2."""

    exit_code = 2


class MissingError(InputError):
    """What the configuration names does not exist. Exit 2."""


class NotFoundError(DispatchLedgerError):
    """There is no such thing in the ledger of this pipeline. Exit 1."""


class BusyError(DispatchLedgerError):
    """Another run holds the window; try again later. Exit 4."""

    exit_code = 4


class FencedError(DispatchLedgerError):
    """A write came too late: the right to it has passed on.

    Attributes:
        refusal: how the ledger counts it; None when nothing is to be counted.
    """

    def __init__(self, message: str, refusal: Refusal | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


class ClaimLostError(FencedError, BusyError):
    """A claim on a job has passed on, or the job has ended otherwise; stop working on it. Exit 4."""


class UnknownKeyError(InputError):
    """No job of this idempotency key was ever promised, or nobody has taken it up. Exit 2."""


class GuardError(DispatchLedgerError):
    """A guard refused, and a person has to decide. Exit 5."""

    exit_code = 5


class UnavailableError(DispatchLedgerError):
    """A service did not answer, or said no for now, after bounded retries. Exit 1."""


class LeaseLostError(FencedError, UnavailableError):
    """This run no longer holds its window: another one took over, or the lease ran out. Exit 1."""


class CorruptError(DispatchLedgerError):
    """What was read cannot be true; stop and look before going on. Exit 1."""


class CancelledError(DispatchLedgerError):
    """A signal asked this run to stop; everything done so far is recorded.

    Attributes:
        signal_number: the signal that asked (2 = SIGINT, 15 = SIGTERM); the exit code is 128 plus this.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"cancelled by signal {signal_number}; everything done so far is recorded")
        self.signal_number = signal_number
