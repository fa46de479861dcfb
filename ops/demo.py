"""The whole story on an emulated AWS and a real PostgreSQL: what was read, what was sent, and what is remembered."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from dispatch.aws.embedded import embedded_aws
from dispatch.aws.sandbox import Sandbox
from dispatch.aws.session import Session
from dispatch.dispatcher import Dispatcher, RunReport, connect_partners, run_document
from dispatch.importing import read_items
from dispatch.items import Item
from dispatch.judging import Left, Rules, judge
from dispatch.run import Cancellation
from ledger import history, schema
from ledger.embedded import embedded_postgres
from ledger.errors import CancelledError, InputError
from ledger.facts import BadRecord
from ledger.instants import HOUR_S, NS_PER_S, Window, parse_booking_ns, window_at, window_of_execute_time
from ledger.settings import DispatchSettings, Settings
from ledger.store import Store
from ops import views
from ops.old_ledger import OldLedger
from ops.samples import SEED_EXECUTE_TIME
from ops.trouble import Trouble

_BUCKET = "dispatch-ledger-demo"
_SHOWN_MAX = 20
_JOBS_MAX = 1000


@dataclass
class Story:
    """What the demo found out, for programs; `reports` are the first runs of the windows, in order."""

    document: dict[str, Any] = field(default_factory=dict)
    reports: list[RunReport] = field(default_factory=list)


def run(
    settings: Settings, file: Path | None, key_name: str, cancellation: Cancellation, console: Console, *, quiet: bool
) -> Story:
    """Load the records of `file` (seven of our own by default), dispatch their windows twice, and tell what happened.

    With the seven, trouble is made afterwards, and mended by a reconcile; then an old copy of the ledger is put back.

    Nothing is kept: database, emulator and their folder are gone afterwards.

    Raises:
        InputError: when the file cannot be used, naming line and reason.
    """
    console = Console(quiet=True) if quiet else console
    with (
        as_file(files("ops") / "seed" / "seven.jsonl") as seed,
        tempfile.TemporaryDirectory(prefix="dispatch-ledger-") as folder,
    ):
        Path(folder).chmod(0o711)  # a server that may not run as root passes through, and sees nothing but its own
        source = file or seed
        look = _look(source, settings, key_name)
        windows = look.windows if file else [window_of_execute_time(SEED_EXECUTE_TIME)]
        with (
            embedded_postgres(Path(folder), settings.ledger.bin_dir) as url,
            embedded_aws(Path(folder)) as endpoint,
        ):
            schema.upgrade(url)
            own = _demo_settings(settings)
            sandbox = Sandbox(Session(endpoint, own.aws.region, embedded=True), own, _BUCKET, key_name)
            sandbox.create()
            sandbox.load(item for item in look.again() if _is_indexed(item, settings))
            with Store(url) as store:
                partners = connect_partners(own, endpoint)
                dispatcher = Dispatcher(own, store, partners, cancellation, "demo")
                return _tell(_Stage(dispatcher, sandbox, console, look, windows, file))


def _demo_settings(settings: Settings) -> Settings:
    """Return the user's settings, with paging on, pointed at the emulator."""
    paging = DispatchSettings.model_validate(
        settings.dispatch.model_dump() | {"pagination_enabled": True},
    )
    objects = settings.objects.model_copy(update={"bucket": _BUCKET})
    aws = settings.aws.model_copy(update={"endpoint_url": "embedded"})
    routes = {
        name: route.model_copy(update={"queue": route.queue.rstrip("/").rsplit("/", 1)[-1]})
        for name, route in settings.routes.items()
    }
    return settings.model_copy(update={"dispatch": paging, "objects": objects, "aws": aws, "routes": routes})


@dataclass
class _Look:
    """A first look at the file: how many records, which windows they belong to, which can't be found by the index."""

    path: Path
    key_name: str
    records: int = 0
    repeated: int = 0
    not_indexed: int = 0
    unreadable: int = 0
    windows: list[Window] = field(default_factory=list)
    last_line: dict[str, int] = field(default_factory=dict)

    def again(self) -> Iterator[Item]:
        """Yield the items once more; of a record that stands there several times the last, as a table keeps it."""
        for number, item in enumerate(read_items(self.path)):
            if self.last_line[item[self.key_name]["S"]] == number:
                yield item


def _look(path: Path, settings: Settings, key_name: str) -> _Look:
    look = _Look(path, key_name)
    times: set[int] = set()
    for number, item in enumerate(read_items(path)):
        identity = item.get(key_name, {}).get("S")
        if not isinstance(identity, str) or not identity:
            names = ", ".join(sorted(item)[:12])
            raise InputError(
                f"{path}, record {number + 1}: no text attribute {key_name!r} to be its key; "
                f"name one with --key (it has {names})",
            )
        look.records += 1
        look.repeated += identity in look.last_line
        look.last_line[identity] = number
        _note_time(look, item, settings, times)
    if not look.records:
        raise InputError(f"{path}: there is no record in it; give a DynamoDB export or JSON lines")
    look.windows = [window_at(start_s) for start_s in sorted(times)]
    return look


def _note_time(look: _Look, item: Item, settings: Settings, times: set[int]) -> None:
    if not _is_indexed(item, settings):
        look.not_indexed += 1
        return
    windows = _windows_of(item[settings.source.time_attribute]["S"])
    look.unreadable += not windows
    times.update(window.start_s for window in windows)


def _is_indexed(item: Item, settings: Settings) -> bool:
    """Say whether both keys of the index are text; a table refuses any other type there."""
    keys = (settings.source.date_attribute, settings.source.time_attribute)
    return all(item.get(name, {}).get("S") for name in keys)


def _windows_of(time_text: str) -> list[Window]:
    """Return the windows that read a booking time, in order: two when it is on the hour, none when it is unreadable."""
    try:
        booking_ns = parse_booking_ns(time_text)
    except ValueError:
        return []
    start_s = booking_ns // NS_PER_S // HOUR_S * HOUR_S
    before = [start_s - HOUR_S] if booking_ns == start_s * NS_PER_S else []
    return [Window(at_s) for at_s in (*before, start_s)]


@dataclass
class _Stage:
    dispatcher: Dispatcher
    sandbox: Sandbox
    console: Console
    look: _Look
    windows: list[Window]
    file: Path | None


def _tell(stage: _Stage) -> Story:
    story = Story()
    _open(stage)
    for window in stage.windows:
        story.reports.append(stage.dispatcher.dispatch(window, "manual"))
        if story.reports[-1].error is not None and story.reports[-1].outcome != "cancelled":
            stage.console.print(f"[red]error:[/red] {views.plain_text(str(story.reports[-1].error))}")
        if story.reports[-1].outcome == "cancelled":
            break
    _show_reports(stage, "1 · First run", story.reports)
    left_out = _left_out(stage)
    jobs = _jobs(stage)
    second = [stage.dispatcher.dispatch(window, "manual") for window in stage.windows]
    _show_reports(stage, "4 · The same again: the ledger remembers, nothing is sent", second)
    known = _known(stage)
    mended = _mended(stage) if stage.file is None else {}
    story.document = {
        "file": None if stage.file is None else str(stage.file),
        "records": stage.look.records,
        "not_in_index": stage.look.not_indexed,
        "runs": [run_document(report) for report in story.reports],
        "left_out": left_out,
        "jobs": jobs,
        "second_runs": [run_document(report) for report in second],
        "windows": known,
        **mended,
    }
    return story


def _mended(stage: _Stage) -> dict[str, Any]:
    seed = {item[stage.look.key_name]["S"]: item for item in stage.look.again()}
    trouble = Trouble(stage.dispatcher, stage.sandbox, stage.console, seed)
    try:
        return trouble.tell(_heading) | {"old_ledger": OldLedger(trouble).tell(_heading)}
    except CancelledError:
        return {}


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _open(stage: _Stage) -> None:
    look, console = stage.look, stage.console
    name = f"from {stage.file}" if stage.file else "of our own"
    console.print(Text.assemble(("dispatch-ledger demo", "bold"), f": {look.records:,} records {name}"))
    if stage.file is None:
        console.print(f"The job is started at {SEED_EXECUTE_TIME}: it has to dispatch the hour before its own.")
    elif look.windows:
        console.print(f"They belong to {len(look.windows):,} windows, {look.windows[0]} to {look.windows[-1]}.")
    else:
        console.print("None of them has a booking time that can be read, so no window is theirs.")
    for count, text in (
        (look.repeated, "standing there more than once (the last of each counts, as in a table)"),
        (look.not_indexed, "without a text as date or time (the index cannot show them; left out)"),
        (look.unreadable, "with a booking time that cannot be read (seen in the window that its text sorts into)"),
    ):
        if count:
            console.print(f"Records {text}: {count:,}.")


def _show_reports(stage: _Stage, title: str, reports: list[RunReport]) -> None:
    _heading(stage.console, title)
    if len(reports) == 1:
        views.show_run(stage.console, reports[0])
    else:
        views.show_runs(stage.console, reports)


def _left_out(stage: _Stage) -> list[dict[str, str]]:
    """Say of each record that was not sent why, a bounded number of them one by one."""
    rules = {window: stage.dispatcher.rules(window) for window in stage.windows[:_JOBS_MAX]}
    reasons: Counter[str] = Counter()
    rows: list[dict[str, str]] = []
    for item in stage.look.again():
        reason = _reason(item, rules, stage)
        if reason is not None:
            reasons[reason.split(":")[0]] += 1
            if len(rows) < _SHOWN_MAX:
                rows.append({"record_id": item[stage.look.key_name]["S"], "reason": reason})
    _heading(stage.console, "2 · Left out, and why")
    if rows:
        views.show_rows(stage.console, "", list(rows), {"record_id": "record", "reason": "why"})
        if sum(reasons.values()) > len(rows):
            stage.console.print("in all: " + ", ".join(f"{count:,} {name}" for name, count in reasons.most_common()))
    else:
        stage.console.print("nothing")
    return rows


def _reason(item: Item, rules: dict[Window, Rules], stage: _Stage) -> str | None:
    source = stage.dispatcher.settings.source
    time_text = item.get(source.time_attribute, {}).get("S", "")
    readable = _windows_of(time_text)
    windows = [window for window in readable if window in rules] if readable else list(rules)
    if not windows or not _is_indexed(item, stage.dispatcher.settings):
        return f"outside: booked for {time_text or 'no time'}"
    verdict = judge(item, rules[windows[0]])
    if verdict is Left.NOT_DUE:
        status = item.get(source.status_attribute, {}).get("S", "missing")
        return f"not due: {source.status_attribute} is {status}"
    return f"set aside: {verdict.cause} ({verdict.detail})" if isinstance(verdict, BadRecord) else None


def _jobs(stage: _Stage) -> list[dict[str, Any]]:
    """Take the messages from the queues and look into the objects they point at."""
    jobs: list[dict[str, Any]] = []
    for queue in dict.fromkeys(route.queue for route in stage.dispatcher.settings.routes.values()):
        for message in stage.sandbox.receive(queue, _JOBS_MAX - len(jobs)):
            document = stage.sandbox.read_object(message["object"]["bucket"], message["object"]["key"])
            records = msgspec.json.decode(document["records"], type=list[dict[str, msgspec.Raw]])
            jobs.append(
                {
                    "job": message["job"],
                    "queue": queue,
                    "group": document["group"],
                    "records": [msgspec.json.decode(record[stage.look.key_name], type=str) for record in records],
                    "object": message["object"]["key"],
                },
            )
    jobs.sort(key=lambda job: (bytes(job["group"]), job["job"]))
    _heading(stage.console, f"3 · Jobs in the queues ({len(jobs):,})")
    for job in jobs[:_SHOWN_MAX]:
        line = Text.assemble(
            (job["job"], "green"), f" → {job['queue']}  ", " → ".join(map(views.plain_text, job["records"][:12]))
        )
        stage.console.print(line)
        stage.console.print(Text(f"    group  {views.plain_text(bytes(job['group']).decode())}", style="dim"))
        stage.console.print(Text(f"    object {job['object']}", style="dim"), soft_wrap=True)
    if len(jobs) > _SHOWN_MAX:
        stage.console.print(f"… and {len(jobs) - _SHOWN_MAX:,} more")
    return jobs


def _known(stage: _Stage) -> list[dict[str, Any]]:
    """Ask the ledger what it knows of the windows."""
    rows = []
    for window in stage.windows:
        story = history.window_history(stage.dispatcher.store, stage.dispatcher.settings.pipeline, window)
        findings = sum(finding["state"] == "open" for finding in story["findings"])
        rows.append({"window": window.name, "state": story["state"], **story["totals"], "findings": findings})
    _heading(stage.console, "5 · What the ledger knows")
    names = ("window", "state", "entries", "confirmed", "void", "records", "findings")
    views.show_rows(stage.console, "", rows[:_SHOWN_MAX], {name: name for name in names})
    return rows
