"""The commands of a controlled redo: plan, look, apply."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ledger import plans
from ledger.acknowledging import parse_note
from ledger.canonical import is_plain_text
from ledger.errors import InputError
from ledger.instants import parse_window
from ledger.plans import Plan, Scope, parse_plan_id
from ledger.store import Store
from ops import views, wiring
from ops.context import CONTEXT, say_error, show_traceback, user_name
from ops.signals import cancellable

if TYPE_CHECKING:
    from reconcile.redo import Applied

_SHOWN_MAX = 200

redo_app = typer.Typer(help="Send again what was sent before: plan it, look at it, apply it once.")


def add_to(app: typer.Typer) -> None:
    """Hang these commands below the others."""
    app.add_typer(redo_app, name="redo")


PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="The plan's id, as redo plan gave it.")]


@redo_app.command(
    "plan", epilog='Example: dispatch-ledger redo plan --window 2026-09-17T15:00:00Z --reason "ticket 4711"'
)
def plan(
    window: Annotated[str, typer.Option(help="The window's start.")],
    reason: Annotated[str, typer.Option(help="Why it is to be sent again; kept with the plan.")],
    group: Annotated[
        list[str] | None,
        typer.Option(help="Only this group: JSON of its group-by values; may be given more than once."),
    ] = None,
    record: Annotated[
        list[str] | None, typer.Option(help="Only this record, by its id; may be given more than once.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who wants it; the user of this machine by default.")] = None,
    include_not_due: Annotated[
        bool,
        typer.Option("--include-not-due", help="Also records that are still booked for then, but not due any more."),
    ] = False,
    include_worked: Annotated[
        bool,
        typer.Option("--include-worked", help="Also records whose job was worked to its end: they are paid again."),
    ] = False,
) -> None:
    """Look at what would be sent again, and keep it as a plan; nothing is sent."""
    from reconcile.redo import make_plan, scope_of_group

    chosen, note = parse_window(window), parse_note(user_name() if by is None else by, reason)
    settings = CONTEXT.settings()
    scope = Scope(
        groups=tuple(dict.fromkeys(scope_of_group(one, settings.source.group_by) for one in group or [])),
        records=tuple(dict.fromkeys(map(_record_id, record or []))),
        include_not_due=include_not_due,
        include_worked=include_worked,
    )
    with (
        cancellable() as cancellation,
        wiring.dispatcher(settings, cancellation, lambda _: None) as dispatcher,
    ):
        made = make_plan(dispatcher, chosen, scope, note)
        _show(dispatcher.store, made)
    if not made.records:
        why = "no record in this scope was claimed and is still due"
        if made.already_worked and not include_worked:
            why = "what was claimed in this scope counts as worked; --include-worked has it sent again"
        sys.stderr.write(f"nothing would be sent: {why}\n")


def _record_id(text: str) -> str:
    if not text:
        raise InputError("--record is empty; give a record's id")
    if not is_plain_text(text):
        raise InputError(f"--record {text[:80]!r} is not plain text in UTF-8")
    return text


@redo_app.command("show", epilog="Example: dispatch-ledger redo show 01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51")
def show(plan_id: PlanId) -> None:
    """Show a plan: what it would send, or has sent, who wanted it, and why."""
    chosen, settings = parse_plan_id(plan_id), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        _show(store, plans.load_plan(store, settings.pipeline, chosen))


@redo_app.command("cancel", epilog="Example: dispatch-ledger redo cancel 01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51")
def cancel(plan_id: PlanId) -> None:
    """Cancel a plan that nobody has begun to apply."""
    chosen, settings = parse_plan_id(plan_id), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        _show(store, plans.cancel_plan(store, settings.pipeline, chosen))


@redo_app.command("apply", epilog="Example: dispatch-ledger redo apply 01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51")
def apply(plan_id: PlanId) -> None:
    """Send what a plan says, once however often you call it, and reconcile its window; a repeat finishes what died."""
    from reconcile.redo import applied_before, apply_plan

    chosen, settings = parse_plan_id(plan_id), CONTEXT.settings()
    with cancellable() as cancellation, wiring.database(settings):
        with wiring.ledger(settings) as store:
            applied = applied_before(store, settings.pipeline, chosen)
        if applied is None:
            with wiring.dispatcher(settings, cancellation, lambda _: None) as dispatcher:
                applied = apply_plan(dispatcher, chosen, user_name())
    if CONTEXT.json:
        CONTEXT.print_json(applied.document)
    else:
        _show_document(applied.document)
    if applied.error is not None:
        say_error(str(applied.error))
        show_traceback(applied.error)
    raise typer.Exit(_exit_code(applied))


def _exit_code(applied: "Applied") -> int:
    if applied.error is not None:
        return views.error_exit_code(applied.error)
    return 3 if applied.open_findings else 0


def _show(store: Store, made: Plan) -> None:
    document = plans.plan_document(store, made)
    if CONTEXT.json:
        CONTEXT.print_json(document)
    else:
        _show_document(document)


def _show_document(document: dict[str, Any]) -> None:
    console = CONTEXT.console
    hidden = {"plan_id", "entries", "run", "reconcile"}
    facts = [(name.replace("_", " "), value) for name, value in document.items() if name not in hidden]
    views.show_facts(console, f"plan {document['plan_id']}", facts)
    shown = [one | {"n": len(one["records"]), "records": ", ".join(one["records"])} for one in document["entries"]]
    columns = {"group": "group", "generation": "generation", "n": "records", "records": "record ids"}
    title = f"jobs ({min(len(shown), _SHOWN_MAX)} of {document['jobs']})"
    views.show_rows(console, title, shown[:_SHOWN_MAX], columns, numbers={"generation", "n"})
    run = document.get("run")
    if run is not None:
        facts = [(name, run[name]) for name in ("run_id", "outcome", "entries", "confirmed", "recovered", "error")]
        views.show_facts(console, "sent by", facts)
    if document.get("reconcile") is not None:
        reconciled = msgspec.json.decode(msgspec.json.encode(document["reconcile"]))
        console.print(f"reconciled: {reconciled['open']} findings open, {reconciled['repaired']} repaired")
