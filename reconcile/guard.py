"""Suspects the ledger, not the world: when too much looks missed, or when objects prove that it was promised before."""

from itertools import islice

from ledger import windows
from ledger.holds import held
from reconcile.objects import unreferenced
from reconcile.orphans import look_into
from reconcile.rescan import Rescan

_LOOKED_INTO_MAX = 1000


def guard_missed(rescan: Rescan) -> None:
    """Hold the window when what looks missed must not be sent without a person; not after a person released it.

    Raises:
        GuardError: when the window is held now.
    """
    if not rescan.options.guarded or not rescan.missed:
        return
    store, tenure = rescan.run.store, rescan.run.tenure
    if (reason := _promised_before(rescan)) is not None:
        raise windows.hold_behind(store, tenure, reason)
    if (reason := _too_many(rescan)) is not None:
        windows.hold(store, tenure, "guard", reason)
        raise held(tenure.window, reason)


def _too_many(rescan: Rescan) -> str | None:
    limit = rescan.options.settings.max_redispatch
    if rescan.missed_n <= limit:
        return None
    return (
        f"{rescan.missed_n} records are due but were never claimed, more than reconcile.max_redispatch ({limit}); "
        "is this the right ledger?"
    )


def _promised_before(rescan: Rescan) -> str | None:
    """Look into objects that no entry refers to: one that holds a missed record was promised by a ledger we lost."""
    for orphan in islice(unreferenced(rescan), _LOOKED_INTO_MAX):
        rescan.run.checkpoint()
        occurrences, _ = look_into(rescan, orphan)
        if any(one in rescan.missed for one in occurrences):
            return (
                f"s3://{orphan.bucket}/{orphan.listed.key} holds records that look missed, and no entry refers to it; "
                "was the ledger restored from a backup?"
            )
    return None
