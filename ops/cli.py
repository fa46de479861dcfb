"""The command line: reads the words, calls the one path, prints what came of it, and picks the exit code."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.exceptions import TyperException

from dispatch.task import parse_task
from ledger import clock, history, runs, schema
from ledger.errors import CancelledError, DispatchLedgerError, InputError
from ledger.facts import RunCounts
from ledger.instants import Window, parse_window, window_of_execute_time
from ledger.settings import CONFIG_NAME, init_template, parse_duration
from ops import consume_cli, doctor_cli, hold_cli, logs, redo_cli, report_cli, service_cli, show_record, views, wiring
from ops.context import CONTEXT, show_traceback
from ops.context import say_error as _say_error
from ops.signals import cancellable

if TYPE_CHECKING:
    from dispatch.dispatcher import RunReport
    from ledger.acknowledging import Note
    from reconcile.reconciler import Report

_TASK_BYTES_MAX = 1024 * 1024
_WORST_FIRST = (130, 143, 1, 5, 4, 3, 0)


app = typer.Typer(
    name="dispatch-ledger",
    help="Dispatch due records to jobs, with a ledger of every promise.",
    epilog="--config PATH, --json, --debug and --log-level may stand anywhere. Exit codes: 0 done, 1 failed, "
    "2 usage or configuration, 3 done but findings are open, 4 window busy, 5 held for a person, 130/143 cancelled.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
db_app = typer.Typer(help="The ledger's schema.")
show_app = typer.Typer(help="The whole history of one thing, in order of time.")
app.add_typer(db_app, name="db")
app.add_typer(show_app, name="show")
redo_cli.add_to(app)
report_cli.add_to(app)
show_record.add_to(show_app)
consume_cli.add_to(app)
service_cli.add_to(app)
doctor_cli.add_to(app)
hold_cli.add_to(app)


@app.callback()
def options(
    config: Annotated[Path | None, typer.Option(help=f"Configuration file; {CONFIG_NAME} here by default.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    log_level: Annotated[
        str, typer.Option(help="What to log on standard error: debug, info, warning, error.")
    ] = "warning",
) -> None:
    """Dispatch due records to jobs, with a ledger of every promise."""
    CONTEXT.config, CONTEXT.json, CONTEXT.debug = config, json, debug
    logs.configure(log_level)


@app.command(epilog="Example: dispatch-ledger init")
def init() -> None:
    """Write a commented configuration file; records that were due before this hour stay with the old dispatcher."""
    path = CONTEXT.config or Path(CONFIG_NAME)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(init_template(clock.utc_now()))
    except FileExistsError:
        raise InputError(f"{path} exists already; move it away, or edit it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; choose another place with --config") from None
    if CONTEXT.json:
        CONTEXT.print_json({"config": str(path)})
    else:
        named = "" if CONTEXT.config is None else f" --config {shlex.quote(str(path))}"
        steps = (
            "set objects.bucket in it",
            f"dispatch-ledger doctor{named}",
            f"dispatch-ledger dispatch --due --dry-run{named}",
        )
        CONTEXT.console.print(f"Wrote {path}. Next: {', then '.join(steps)}", soft_wrap=True)


@app.command(epilog="Example: dispatch-ledger demo bookings.jsonl.gz")
def demo(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="DynamoDB export lines or JSON lines, gzipped or not; seven records of our own by default."
        ),
    ] = None,
    key: Annotated[str, typer.Option(help="The attribute of FILE that names a record.")] = "Id",
) -> None:
    """Run the main job on an emulated AWS and a real PostgreSQL of its own, from start to report."""
    from ops import demo as demonstration

    with cancellable() as cancellation:
        settings = CONTEXT.settings(own_ledger=True)
        story = demonstration.run(settings, file, key, cancellation, CONTEXT.console, quiet=CONTEXT.json)
    if CONTEXT.json:
        CONTEXT.print_json(story.document)
    if cancellation.is_asked:
        _say_error(str(CancelledError(cancellation.signal_number)))
        _exit(128 + cancellation.signal_number)
    _exit(_worst(map(views.run_exit_code, story.reports)))


@db_app.command(epilog="Example: dispatch-ledger db upgrade")
def upgrade() -> None:
    """Bring the ledger's schema to this version."""
    with wiring.database(CONTEXT.settings()) as url:
        before = schema.current_revision(url)
        after = schema.upgrade(url)
    _say_schema(before=before, current=after, head=after)


@db_app.command(epilog="Example: dispatch-ledger db current")
def current() -> None:
    """Show which schema the ledger has, and which this version needs. Exit 1 when they differ."""
    with wiring.database(CONTEXT.settings()) as url:
        revision = schema.current_revision(url)
    _say_schema(current=revision, head=schema.head_revision())
    _exit(0 if revision == schema.head_revision() else 1)


def _say_schema(**revisions: str | None) -> None:
    if CONTEXT.json:
        CONTEXT.print_json(revisions)
    else:
        CONTEXT.console.print(", ".join(f"{name}: {value or 'no tables'}" for name, value in revisions.items()))


@app.command(epilog="Example: dispatch-ledger dispatch --window 2026-09-17T15:00:00Z")
def dispatch(
    execute_time: Annotated[str | None, typer.Option(help="The instant the job was started at, RFC 3339.")] = None,
    task: Annotated[str | None, typer.Option(help="A file with the task's JSON, or - for standard input.")] = None,
    window: Annotated[str | None, typer.Option(help="The window's start, such as 2026-09-17T15:00:00Z.")] = None,
    due: Annotated[bool, typer.Option("--due", help="Every closed window not yet dispatched, oldest first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Find the due records of one window and send each group as one job."""
    with cancellable() as cancellation:
        chosen = _chosen_window(execute_time, task, window, due=due)
        settings = CONTEXT.settings()
        wired = wiring.dry_dispatcher if dry_run else wiring.dispatcher
        with _progress() as on_progress, wired(settings, cancellation, on_progress) as dispatcher:
            if chosen is not None and not runs.has_ended(dispatcher.store, chosen):
                raise InputError(f"window {chosen} has not ended yet; dispatch it after {chosen.end_name}")
            reports = [dispatcher.dispatch(chosen, "manual")] if chosen else list(dispatcher.dispatch_due("manual"))
    _report(reports, due=due)


@app.command(epilog="Example: dispatch-ledger reconcile --window 2026-09-17T15:00:00Z")
def reconcile(
    window: Annotated[list[str] | None, typer.Option(help="A window's start; may be given more than once.")] = None,
    lookback: Annotated[
        str | None, typer.Option(help="Every closed window this far back, such as 6h; default: reconcile.lookback.")
    ] = None,
    no_repair: Annotated[bool, typer.Option("--no-repair", help="Record findings, mend nothing.")] = False,
    delete_orphans: Annotated[
        bool, typer.Option("--delete-orphans", help="Remove objects that nobody refers to, instead of tagging them.")
    ] = False,
    release_hold: Annotated[
        bool,
        typer.Option(
            "--release-hold",
            help="You have looked at the held windows given, or with --lookback at those held by `hold`: they go on.",
        ),
    ] = False,
    reason: Annotated[str | None, typer.Option(help="With --release-hold: why they may go on.")] = None,
    by: hold_cli.By = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Go back to the source: find what was missed, left half-way, lost or sent twice, and repair what is safe."""
    from reconcile.reconciler import require_ended, windows_to_rescan
    from reconcile.rescan import Options

    with cancellable() as cancellation:
        chosen = [parse_window(one) for one in dict.fromkeys(window or [])]
        back = None if lookback is None else _lookback(lookback)
        _check_reconcile(chosen, back, no_repair=no_repair, delete_orphans=delete_orphans, release_hold=release_hold)
        release = _release_note(reason, by, asked=release_hold)
        settings = CONTEXT.settings()
        options = Options(
            settings.reconcile, settings.reconcile.grace, repair=not no_repair, delete_orphans=delete_orphans
        )
        wired = wiring.dry_dispatcher if dry_run else wiring.dispatcher
        with _progress() as on_progress, wired(settings, cancellation, on_progress) as dispatcher:
            require_ended(dispatcher, chosen)
            windows = chosen or windows_to_rescan(dispatcher, settings.reconcile.lookback if back is None else back)
            if release is not None and not chosen:
                windows = hold_cli.held_by_people(dispatcher.store, settings.pipeline, windows)
            report = wiring.reconciler(dispatcher, options).reconcile(windows, release=release)
    _report_reconcile(report, explicit=bool(chosen))


@app.command(epilog="Example: dispatch-ledger scheduler")
def scheduler() -> None:
    """Dispatch what is owed and reconcile, each on its cron line (UTC), until ended by Ctrl-C or SIGTERM."""
    from ops import schedule

    settings, summary = CONTEXT.settings(), schedule.Summary()
    with cancellable(document=lambda: summary.document) as cancellation:
        schedule.run(settings, cancellation, CONTEXT.console, summary)
    if CONTEXT.json:
        CONTEXT.print_json(summary.document)
    _exit(128 + cancellation.signal_number)


@app.command(epilog="Example: dispatch-ledger up")
def up(
    no_samples: Annotated[
        bool, typer.Option("--no-samples", help="Leave an empty table empty, without the seven seed records.")
    ] = False,
) -> None:
    """Run all of it embedded, to try it out, until Ctrl-C or SIGTERM: ledger, emulated AWS, jobs, API, worker."""
    from ops import up as embedded

    with (
        embedded.scene_of(CONTEXT.settings(own_ledger=True), CONTEXT.console, sampled=not no_samples) as scene,
        cancellable(lambda: embedded.end_at_once(scene), lambda: scene.document) as cancellation,
    ):
        embedded.play(scene, cancellation)
        if CONTEXT.json:
            CONTEXT.print_json(scene.document)
    _exit(128 + cancellation.signal_number)


def _lookback(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as reason:
        raise InputError(f"--lookback {text[:80]!r}: {reason}") from None


def _check_reconcile(
    windows: list[Window], back: timedelta | None, *, no_repair: bool, delete_orphans: bool, release_hold: bool
) -> None:
    if windows and back is not None:
        raise InputError("give either --window or --lookback, not both")
    if no_repair and delete_orphans:
        raise InputError("--no-repair and --delete-orphans exclude each other")
    if no_repair and release_hold:
        raise InputError("--no-repair and --release-hold exclude each other: what is released is repaired")
    if release_hold and not windows and back is None:
        raise InputError(
            "--release-hold needs the window to release: --window START; or --lookback, for all that a person has held"
        )


def _release_note(reason: str | None, by: str | None, *, asked: bool) -> "Note | None":
    if not asked:
        if (reason, by) != (None, None):
            raise InputError("--reason and --by belong to --release-hold")
        return None
    if reason is None:
        raise InputError("--release-hold needs a reason, which is kept: --reason TEXT")
    return hold_cli.note_of(by, reason)


def _report_reconcile(report: "Report", *, explicit: bool) -> None:
    from reconcile.reconciler import report_document

    if CONTEXT.json:
        CONTEXT.print_json(report_document(report))
    else:
        views.show_reconcile(CONTEXT.console, report)
    for one in report.windows:
        if one.error is not None and (explicit or not one.busy):
            _say_error(str(one.error))
            show_traceback(one.error)
    _exit(_worst(views.reconcile_exit_code(one, explicit=explicit) for one in report.windows))


def _chosen_window(execute_time: str | None, task: str | None, window: str | None, *, due: bool) -> Window | None:
    given = [
        name
        for name, value in (("--execute-time", execute_time), ("--task", task), ("--window", window))
        if value is not None
    ]
    given += ["--due"] if due else []
    if len(given) != 1:
        has = f"got {' and '.join(given)}" if given else "got none"
        raise InputError(f"give exactly one of --execute-time, --task, --window and --due ({has})")
    if execute_time is not None:
        return window_of_execute_time(execute_time)
    if task is not None:
        return parse_task(_read_task(task))
    return None if window is None else parse_window(window)


def _read_task(path: str) -> bytes:
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(_TASK_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(_TASK_BYTES_MAX + 1)
    except OSError as error:
        raise InputError(f"the task {path!r} cannot be read: {error.strerror}") from None
    if len(raw) > _TASK_BYTES_MAX:
        raise InputError(f"the task {path!r} is larger than {_TASK_BYTES_MAX} bytes, which no task is")
    return raw


def _report(reports: "list[RunReport]", *, due: bool) -> None:
    from dispatch.dispatcher import run_document

    if CONTEXT.json:
        documents = [run_document(report) for report in reports]
        CONTEXT.print_json({"runs": documents} if due else documents[0])
    elif due:
        views.show_runs(CONTEXT.console, reports) if reports else CONTEXT.console.print("No closed window is owed.")
    else:
        views.show_run(CONTEXT.console, reports[0])
    for report in reports:
        if report.error is not None:
            _say_error(str(report.error))
            show_traceback(report.error)
    _exit(_worst(map(views.run_exit_code, reports)))


def _worst(codes: Iterator[int]) -> int:
    given = set(codes) or {0}
    return next((code for code in _WORST_FIRST if code in given), 1)


@show_app.command("window", epilog="Example: dispatch-ledger show window 2026-09-17T15:00:00Z")
def show_window(window: Annotated[str, typer.Argument(help="The window's start.")]) -> None:
    """Tell the story of a window: runs, pages, entries, findings."""
    chosen, settings = parse_window(window), CONTEXT.settings()
    with wiring.ledger(settings) as store:
        story = history.window_history(store, settings.pipeline, chosen)
    if CONTEXT.json:
        return CONTEXT.print_json(story)
    console, totals = CONTEXT.console, story["totals"]
    facts = [("state", story["state"]), ("held", story.get("held")), ("completed", story.get("completed_at"))]
    views.show_facts(console, f"window {chosen} · {settings.pipeline}", [*facts, *totals.items()])
    views.show_rows(
        console,
        f"entries ({len(story['entries'])} of {totals['entries']})",
        story["entries"],
        {
            "entry_id": "entry",
            "state": "state",
            "group": "group",
            "job": "job",
            "records": "records",
            "attempts": "tries",
        },
    )
    views.show_rows(
        console,
        "findings",
        story["findings"],
        {"id": "id", "kind": "kind", "cause": "cause", "record_id": "record", "state": "state", "detail": "detail"},
    )
    return views.show_events(console, story["events"])


@show_app.command("entry", epilog="Example: dispatch-ledger show entry 01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51")
def show_entry(entry_id: Annotated[str, typer.Argument(help="The entry's id, as in its message.")]) -> None:
    """Tell the story of an entry: group, object, records, attempts, findings."""
    try:
        chosen = UUID(entry_id)
    except ValueError:
        raise InputError(f"{entry_id[:80]!r} is no entry id; it is the entry_id of a message, a UUID") from None
    settings = CONTEXT.settings()
    with wiring.ledger(settings) as store:
        story = history.entry_history(store, settings.pipeline, chosen)
    if story is None:
        raise DispatchLedgerError(
            f"no entry {chosen} in the ledger of pipeline {settings.pipeline}; check id and pipeline"
        )
    if CONTEXT.json:
        return CONTEXT.print_json(story)
    place = story["object"]
    shown = ("window", "state", "void_reason", "job", "queue", "records", "generation", "idempotency_key")
    facts = [(name.replace("_", " "), story[name]) for name in shown]
    views.show_facts(CONTEXT.console, f"entry {chosen}", [*facts, ("object", f"s3://{place['bucket']}/{place['key']}")])
    views.show_rows(
        CONTEXT.console, "records", story["occurrences"], {"record_id": "record", "booking_time": "booked for"}
    )
    return views.show_events(CONTEXT.console, story["events"])


@contextmanager
def _progress() -> Iterator[Callable[[RunCounts], None]]:
    """Show a long run's progress to a person at a terminal, and to nobody else."""
    if CONTEXT.json or not sys.stderr.isatty():
        yield lambda _: None
        return
    numbers = ("pages {task.fields[pages]:,}", "records {task.fields[evaluated]:,}", "jobs {task.fields[jobs]:,}")
    text = "{task.description} " + " · ".join(numbers)
    columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn(text), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("dispatching", total=None, pages=0, evaluated=0, jobs=0)
        yield lambda counts: progress.update(
            task, pages=counts.pages, evaluated=counts.evaluated, jobs=counts.confirmed + counts.recovered
        )


def _exit(code: int) -> NoReturn:
    raise typer.Exit(code)


def _hoist(arguments: Sequence[str]) -> list[str]:
    """Let the options that stand before the command stand anywhere."""
    front: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest += [argument, *waiting]
        elif argument in {"--json", "--debug"} or argument.startswith(("--config=", "--log-level=")):
            front.append(argument)
        elif argument in {"--config", "--log-level"}:
            value = next(waiting, None)
            if value is None:
                raise InputError(f"{argument} needs a value; see: dispatch-ledger --help")
            front += [argument, value]
        else:
            rest.append(argument)
    return front + rest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. An error is one line on standard error, and `{"error"}` where asked."""
    given = sys.argv[1:] if arguments is None else arguments
    CONTEXT.config, CONTEXT.json, CONTEXT.debug, CONTEXT.told = None, "--json" in given, "--debug" in given, False
    try:
        code = app(_hoist(given), standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        return _usage(error)
    except (typer.Abort, KeyboardInterrupt) as error:
        return _fail("interrupted", error, 130)
    except CancelledError as error:
        return _fail(str(error), error, 128 + error.signal_number)
    except DispatchLedgerError as error:
        return _fail(str(error), error, error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.strerror or error}; the output could not be written", error, 1)
    except Exception as error:  # noqa: BLE001 - the last line of defence; a person gets one line, not a traceback
        return _fail(
            f"unexpected {type(error).__name__}: {error}; please report it with the output of --debug", error, 1
        )


def _usage(error: TyperException) -> int:
    """Say what was wrong with the words; where only a command was missing, its help has been shown instead."""
    message = error.format_message().strip().rstrip(".")
    if not message and not CONTEXT.json:
        return 2
    command = getattr(getattr(error, "ctx", None), "command_path", "dispatch-ledger")
    return _fail(f"{message or 'Missing command'}; see: {command} --help", error, 2)


def _fail(message: str, error: BaseException, code: int) -> int:
    if CONTEXT.json and not CONTEXT.told:
        with suppress(OSError):  # what cannot be written is what is being told of
            CONTEXT.print_json({"error": " ".join(message.split())})
    _say_error(message)
    show_traceback(error)
    return code


if __name__ == "__main__":
    sys.exit(main())
