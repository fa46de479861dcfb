"""The commands for a ledger that cannot be trusted as it is: hold windows, and take back what objects prove."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ledger import runs, windows
from ledger.acknowledging import Note, parse_note
from ledger.errors import InputError
from ledger.instants import Window, parse_window
from ledger.settings import Settings
from ledger.store import Store
from ops import views, wiring
from ops.context import CONTEXT, say_error, show_traceback, user_name
from ops.signals import cancellable

if TYPE_CHECKING:
    from reconcile.adopt import Adoption
    from reconcile.restored import Word

By = Annotated[str | None, typer.Option(help="Who says so; the user of this machine by default.")]


def add_to(app: typer.Typer) -> None:
    """Hang these commands below the others."""
    app.command("hold", epilog='Example: dispatch-ledger hold --all --reason "a backup was put back"')(hold)
    app.command("recover", epilog="Example: dispatch-ledger recover --restored")(recover)


def hold(
    reason: Annotated[str, typer.Option(help="Why nothing may happen to them before a person has looked.")],
    window: Annotated[list[str] | None, typer.Option(help="A window's start; may be given more than once.")] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Every window in the ledger, and every hour that the scheduled jobs would look at."),
    ] = False,
    by: By = None,
) -> None:
    """Hold windows for a person: nothing of them is dispatched, repaired or sent again until somebody releases them."""
    chosen = [parse_window(one) for one in dict.fromkeys(window or [])]
    if every == bool(chosen):
        raise InputError("say which windows to hold: --window START, or --all")
    note, settings = note_of(by, reason), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        wanted = _every_window(store, settings) if every else chosen
        new = windows.hold_by_person(store, settings.pipeline, wanted, note)
    if CONTEXT.json:
        CONTEXT.print_json(
            {"windows": [{"window": one.name, "held": True, "new": one in new} for one in wanted], "by": note.by}
        )
        return
    before = len(wanted) - len(new)
    told = f"{len(new)} {'window is' if len(new) == 1 else 'windows are'} held now"
    CONTEXT.console.print(told + (f"; {before} {'was' if before == 1 else 'were'} before." if before else "."))


def note_of(by: str | None, reason: str) -> Note:
    """Return who decides something, by default whoever runs this, and why."""
    return parse_note(user_name() if by is None else by, reason)


def held_by_people(store: Store, pipeline: str, chosen: list[Window]) -> list[Window]:
    """Return those of these windows that are held because a person wanted it, in their order."""
    known = windows.how_far(store, pipeline, chosen)
    return [one for one in chosen if one in known and known[one].held_kind == "person"]


def _every_window(store: Store, settings: Settings) -> list[Window]:
    """List the windows in the ledger, and every hour that a scheduled job looks at, also the one that runs now."""
    schedule, reconcile = settings.schedule, settings.reconcile
    back = max(schedule.catch_up, reconcile.lookback, reconcile.deep_lookback)
    closed = runs.closed_windows(store, back, schedule.not_before)
    running = [Window(closed[-1].end_s)] if closed else []
    return sorted({*windows.how_far(store, settings.pipeline), *closed, *running})


def recover(
    from_objects: Annotated[
        bool, typer.Option("--from-objects", help="The ledger is lost: take what the stored objects prove into it.")
    ] = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="A backup was put back: compare all windows with their witnesses, adopt what is forgotten.",
        ),
    ] = False,
    window: Annotated[str | None, typer.Option(help="With --restored: the held window to decide about.")] = None,
    word: Annotated[
        str | None,
        typer.Option("--as", help="What its adopted jobs are: sent, or unknown (sent again under their old keys)."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, when --as is given.")] = None,
    by: By = None,
) -> None:
    """Adopt stored objects as entries whose send is unknown; their windows are held until you say what they are."""
    if from_objects == restored:
        raise InputError("say what to recover from: --restored (a backup was put back), or --from-objects (it is lost)")
    if restored and (window, word) != (None, None):
        _decide(*_decision(window, word, reason, by))
        return
    if (window, word, reason, by) != (None, None, None, None):
        raise InputError("--window, --as, --reason and --by go together, with --restored")
    from reconcile.adopt import adopt_objects
    from reconcile.restored import recover_restored

    settings = CONTEXT.settings()
    with cancellable() as cancellation, wiring.dispatcher(settings, cancellation, lambda _: None) as dispatcher:
        adoption = recover_restored(dispatcher) if restored else adopt_objects(dispatcher)
    _report(adoption, restored=restored)


def _report(adoption: "Adoption", *, restored: bool) -> None:
    from reconcile.adopt import adoption_document

    if CONTEXT.json:
        CONTEXT.print_json(adoption_document(adoption))
    elif restored and not adoption.windows and adoption.error is None:
        CONTEXT.console.print("The ledger knows all that the witnesses beside the objects say; nothing was adopted.")
    else:
        views.show_adopted(CONTEXT.console, adoption.windows)
    if adoption.error is not None:
        say_error(str(adoption.error))
        show_traceback(adoption.error)
        raise typer.Exit(views.error_exit_code(adoption.error))


def _decision(window: str | None, word: str | None, reason: str | None, by: str | None) -> tuple[Window, "Word", Note]:
    if window is None or word is None or reason is None:
        raise InputError("a decision needs all of it: --restored --window START --as sent|unknown --reason TEXT")
    if word not in {"sent", "unknown"}:
        raise InputError(f"--as {word[:40]!r} is not allowed; use sent or unknown")
    chosen: Word = "sent" if word == "sent" else "unknown"
    return parse_window(window), chosen, note_of(by, reason)


def _decide(window: Window, word: "Word", note: Note) -> None:
    from reconcile.restored import decide, decided_document

    settings = CONTEXT.settings()
    with cancellable() as cancellation, wiring.dispatcher(settings, cancellation, lambda _: None) as dispatcher:
        decided = decide(dispatcher, window, word, note)
    document = decided_document(decided)
    if CONTEXT.json:
        CONTEXT.print_json(document)
        return
    if not decided.released:
        sys.stderr.write(f"window {window} is not held, and its witness says nothing new; nothing was done\n")
        return
    names = ("entries", "suspected", "vouched", "to_be_sent_again")
    shown = [(name.replace("_", " "), document[name]) for name in names]
    views.show_facts(CONTEXT.console, f"window {window} is released, its adopted jobs count as {word}", shown)
