"""Why a window is held for a person, and what that person is told to do. Pure."""

from ledger.errors import GuardError
from ledger.facts import HoldKind
from ledger.instants import Window

ADOPTING = "its objects are being adopted, which has not ended"
ADOPTED = "objects were adopted as entries; nobody knows whether their jobs were sent"
# What kept a window is not known to a version of before; a person may release it.
_UNKNOWN: HoldKind = "guard"
_RECOVER = "dispatch-ledger recover"


def held(window: Window, reason: str, kind: HoldKind | None = None) -> GuardError:
    """Return the error that says that a window waits for a person, and what that person can do."""
    return GuardError(f"window {window} is held: {reason}; {_way_out(window, kind or _UNKNOWN)}")


def _way_out(window: Window, kind: HoldKind) -> str:
    release = f"dispatch-ledger reconcile --window {window} --release-hold --reason TEXT"
    if kind == "behind":
        return f"nothing of it is sent until what was forgotten is adopted: {_RECOVER} --restored"
    if kind == "adopting":
        return f"finish that first: {_RECOVER} --restored, or --from-objects"
    if kind == "adopted":
        sent = f"{_RECOVER} --restored --window {window} --as sent --reason TEXT"
        again = "to send them again under their old keys, which consumers may have forgotten too"
        return f"when they were sent, say so: {sent}; {again}: {release}"
    return f"when a person has looked, release it: {release}"


def not_released(window: Window, kind: HoldKind | None) -> GuardError | None:
    """Return the error that says why a held window cannot be released yet; None when it can."""
    if kind == "adopting":
        why = f"{ADOPTING} (begun by --restored, or {_RECOVER} --from-objects)"
    elif kind == "behind":
        why = "what this ledger has forgotten is not adopted yet"
    else:
        return None
    return GuardError(
        f"window {window} stays held: {why}; what is not adopted would be sent again under another key, so adopt it "
        f"first: {_RECOVER} --restored"
    )
