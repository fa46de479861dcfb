"""Every exit code of every command, as docs/reference/exit-codes.md has them: tested elsewhere by name, or here."""

import json
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console

from ledger.errors import UnavailableError
from ledger.reports import REPORTED_KINDS
from ledger.settings import CONFIG_NAME, env_name, load_settings
from ops import cli, context, demo, doctor, up
from ops import main as entry
from tests.aws_servers import World, booking
from tests.report_kit import Planter
from tests.rig import FLOWS, WINDOW, Rig
from tests.wire import FaultProxy, Rule, callback, on, status

ROOT = Path(__file__).parents[2]
NOWHERE = "postgresql+psycopg://me@127.0.0.1:9/ledger"
NO_ENTRY = "01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51"
CANCELLED = 130  # stands for 143 as well
SIGNALS = (signal.SIGINT, signal.SIGTERM)
READING = {
    "db upgrade": ["db", "upgrade"],
    "db current": ["db", "current"],
    "show window": ["show", "window", WINDOW],
    "show entry": ["show", "entry", NO_ENTRY],
    "show record": ["show", "record", "R1"],
    "report …": ["report", "windows"],
    "findings list": ["findings", "list"],
    "findings ack": ["findings", "ack", "1", "--reason", "seen"],
    "hold": ["hold", "--window", WINDOW, "--reason", "look first"],
    "audit verify": ["audit", "verify"],
    "redo show": ["redo", "show", NO_ENTRY],
    "redo cancel": ["redo", "cancel", NO_ENTRY],
}
WORKING = {
    "redo plan": ["redo", "plan", "--window", WINDOW, "--reason", "seen"],
    "redo apply": ["redo", "apply", NO_ENTRY],
    "consume": ["consume", "--queue", "reward-point", "--handler", "json:loads"],
    "serve": ["serve", "--port", "0"],
    "worker": ["worker"],
}
# Each way of every command that works with the ledger that the configuration names; what follows the comma is the way.
NEEDING = (
    READING
    | WORKING
    | {f"report …, {name}": ["report", name] for name in REPORTED_KINDS}
    | {
        "dispatch, --window": ["dispatch", "--window", WINDOW],
        "dispatch, --due": ["dispatch", "--due"],
        "dispatch, --execute-time": ["dispatch", "--execute-time", "2026-09-17T16:01:10Z"],
        "dispatch, --dry-run": ["dispatch", "--due", "--dry-run"],
        "reconcile": ["reconcile"],
        "reconcile, --window": ["reconcile", "--window", WINDOW],
        "reconcile, --dry-run": ["reconcile", "--dry-run"],
        "reconcile, --release-hold": ["reconcile", "--window", WINDOW, "--release-hold", "--reason", "seen"],
        "recover": ["recover", "--from-objects"],
        "recover, --restored": ["recover", "--restored"],
        "recover, --as": ["recover", "--restored", "--window", WINDOW, "--as", "sent", "--reason", "seen"],
        "scheduler": ["scheduler"],
    }
)
OWN_LEDGER = {"init", "demo", "up", "doctor"}  # the last looks at everything else all the same
COMMAND_LINE = "tests/e2e/test_command_line.py"
RECONCILE = "tests/e2e/test_reconcile_command.py"
RESTORED = "tests/e2e/test_restored_command.py"
REPORTS = "tests/e2e/test_report_commands.py"
REFUSALS = "tests/e2e/test_refusals.py"
SCHEDULER = "tests/e2e/test_scheduler.py"
SHOW = "tests/e2e/test_show.py"
DEMO = "tests/e2e/test_demo.py"
REDO = "tests/e2e/test_redo_command.py"
DOCTOR = "tests/integration/test_doctor.py"
CONSUME = "tests/e2e/test_consume.py"
JOBS = "tests/e2e/test_jobs_over_http.py"
UP = "tests/e2e/test_up.py"
SIGNALLED = "tests/fault/test_signals.py"
ELSEWHERE = {
    ("init", 0): f"{COMMAND_LINE}::test_init_writes_a_file_that_dispatch_uses",
    ("init", 2): f"{COMMAND_LINE}::test_init_overwrites_nothing",
    ("demo", 0): f"{DEMO}::test_the_seven_for_programs",
    ("demo", 2): f"{DEMO}::test_a_bad_file",
    ("demo", 3): f"{DEMO}::test_plain_lines_of_any_kind",
    ("up", 4): f"{UP}::test_it_dispatches_and_a_second_terminal_sees_it",
    ("up", CANCELLED): f"{UP}::test_a_second_signal_leaves_nothing_and_the_next_time_works",
    ("db upgrade", 0): f"{COMMAND_LINE}::test_db_current_and_upgrade",
    ("db current", 0): f"{COMMAND_LINE}::test_db_current_and_upgrade",
    ("dispatch", 0): f"{COMMAND_LINE}::test_the_console_script_is_the_same",
    ("dispatch", 1): f"{COMMAND_LINE}::test_the_document_of_a_failed_run",
    ("dispatch", 2): f"{COMMAND_LINE}::test_exit_2_prints_its_error_as_the_document",
    ("dispatch", 3): f"{COMMAND_LINE}::test_the_document_of_a_run",
    ("dispatch", 4): f"{COMMAND_LINE}::test_the_document_of_a_busy_run",
    ("dispatch", 5): "tests/e2e/test_hold.py::test_a_window_with_objects_that_nobody_knows_is_held",
    ("dispatch", CANCELLED): f"{SIGNALLED}::test_case_20_cancelled_on_page_2_of_5",
    ("reconcile", 0): f"{RECONCILE}::test_a_clean_window",
    ("reconcile", 2): f"{RECONCILE}::test_words_that_do_not_fit",
    ("reconcile", 3): f"{RECONCILE}::test_case_2_for_people_and_programs",
    ("reconcile", 4): f"{RECONCILE}::test_case_7_a_window_that_is_being_worked_on",
    ("reconcile", 5): f"{RECONCILE}::test_a_held_window_and_its_release",
    ("reconcile", CANCELLED): f"{RECONCILE}::test_case_20_a_reconcile_is_cancelled",
    ("recover", 0): f"{RECONCILE}::test_recover_from_objects",
    ("recover", 2): f"{RECONCILE}::test_recover_says_from_what",
    ("recover", 5): f"{RESTORED}::test_what_a_person_holds",
    ("hold", 0): f"{RESTORED}::test_what_a_person_holds",
    ("scheduler", 2): f"{SCHEDULER}::test_a_table_that_is_missing_at_the_start",
    ("scheduler", CANCELLED): f"{SCHEDULER}::test_case_17_the_missed_hours_are_caught_up_at_the_start",
    ("show window", 0): f"{SHOW}::test_a_window",
    ("show entry", 0): f"{SHOW}::test_an_entry",
    ("show record", 0): f"{SHOW}::test_a_record",
    ("report …", 0): f"{REPORTS}::test_every_number_agrees",
    ("findings list", 0): f"{REPORTS}::test_findings_are_listed_by_state_kind_and_window",
    ("findings ack", 0): f"{REPORTS}::test_acknowledging",
    ("findings ack", 5): f"{REPORTS}::test_what_cannot_be_acknowledged",
    ("audit verify", 0): f"{REPORTS}::test_an_audit_of_a_sound_ledger",
    ("redo plan", 0): f"{REDO}::test_case_8_a_redo_within_a_minute_is_really_delivered",
    ("redo show", 0): f"{REDO}::test_case_8_a_redo_within_a_minute_is_really_delivered",
    ("redo apply", 0): f"{REDO}::test_case_8_a_redo_within_a_minute_is_really_delivered",
    ("redo apply", 3): f"{REDO}::test_what_is_found_at_the_end_of_an_apply",
    ("redo apply", 4): f"{REDO}::test_case_16_a_redo_during_a_dispatch",
    ("redo apply", 5): f"{REDO}::test_what_is_refused",
    ("redo apply", CANCELLED): f"{REDO}::test_an_apply_is_cancelled_and_finished_by_a_repeat",
    ("redo cancel", 0): f"{REDO}::test_what_is_refused",
    ("redo cancel", 5): f"{REDO}::test_an_apply_is_cancelled_and_finished_by_a_repeat",
    ("doctor", 0): f"{DOCTOR}::test_the_command_prints_a_line_a_check",
    ("doctor", 1): f"{DOCTOR}::test_the_command_answers_with_one_document",
    ("doctor", 2): f"{DOCTOR}::test_a_configuration_that_cannot_be_read",
    ("consume", 0): f"{CONSUME}::test_it_tells_a_person_what_became_of_the_messages",
    ("consume", CANCELLED): f"{CONSUME}::test_ctrl_c_ends_it_with_130",
    ("serve", CANCELLED): f"{JOBS}::test_killed_in_the_middle_another_worker_completes_it_once",
    ("worker", CANCELLED): f"{JOBS}::test_a_worker_that_is_asked_to_end_gives_its_job_back",
}
HERE = {
    ("demo", 1), ("demo", CANCELLED), ("init", CANCELLED), ("up", 1), ("up", 2), ("reconcile", 1), ("recover", 1),
    ("recover", 4), ("recover", CANCELLED), ("scheduler", 1),
    *((command, code) for command in READING for code in (1, 2, CANCELLED)),
    *((command, code) for command in WORKING for code in (1, 2)), ("redo plan", CANCELLED), ("doctor", CANCELLED),
}  # fmt: skip


def documented() -> set[tuple[str, int]]:
    """Read the table of the documentation."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", (ROOT / "docs/reference/exit-codes.md").read_text(), re.MULTILINE)
    codes = (0, 1, 2, 3, 4, 5, CANCELLED)
    return {
        (name, code) for name, cells in rows for code, cell in zip(codes, cells.split("|"), strict=True) if cell.strip()
    }


def all_commands() -> set[str]:
    """Ask the command line for its commands."""

    def walk(group: Any, words: str = "") -> Iterator[str]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, f"{name} ")
            else:
                yield words + name

    return {re.sub("^report .*", "report …", name) for name in walk(typer.main.get_command(cli.app))}


def test_the_table_has_every_command() -> None:
    assert {name for name, _ in documented()} == all_commands()


def test_every_code_in_the_table_has_a_test() -> None:
    assert documented() == ELSEWHERE.keys() | HERE
    for place in ELSEWHERE.values():
        path, name = place.split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), place


@dataclass
class Desk:
    """The command line in this process."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def set(self, **settings: str) -> None:
        for name, value in settings.items():
            self.monkeypatch.setenv(env_name(name.replace("__", ".")), value)

    def refused(self, *arguments: str, code: int, text: str = "") -> Any:
        """Run a command that ends with an error; gives its document."""
        assert cli.main([*arguments, "--json"]) == code
        return self.said(text)

    def said(self, text: str = "") -> Any:
        out, err = self.capsys.readouterr()
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert text in err
        document = json.loads(out)
        assert document["error"]
        return document


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Desk]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.chdir(tmp_path)
    yield Desk(monkeypatch, capsys)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def full_desk(desk: Desk, world: World, ledger_url: str) -> Desk:
    """The command line, with a world and a ledger."""
    for name, value in world.environment().items():
        desk.monkeypatch.setenv(name, value)
    desk.set(ledger__database_url=ledger_url, **{key.replace(".", "__"): one for key, one in FLOWS["staged"].items()})
    return desk


def raising(number: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """Let a signal come in the middle of a call."""

    def call(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(number)
        return then(*arguments, **options)

    return call


@pytest.mark.parametrize("command", READING)
def test_1_the_ledger_does_not_answer(desk: Desk, command: str) -> None:
    desk.set(ledger__database_url=NOWHERE)
    desk.refused(*READING[command], code=1, text="ledger.database_url")


@pytest.mark.parametrize("command", WORKING)
def test_1_the_ledger_of_a_command_that_works_does_not_answer(full_desk: Desk, world: World, command: str) -> None:
    queues = {"jobs__queue": world.queue_url("reward-point"), "jobs__slow_queue": world.queue_url("reward-ecoupon")}
    full_desk.set(ledger__database_url=NOWHERE, **queues)
    full_desk.refused(*WORKING[command], code=1, text="ledger.database_url")


@pytest.mark.parametrize("command", READING | WORKING)
def test_2_a_bad_setting(desk: Desk, command: str) -> None:
    words = (READING | WORKING)[command]
    desk.set(dispatch__lease="soon")
    desk.refused(*words, code=2, text="dispatch.lease")
    desk.refused(*words, "--no-such", code=2, text="--no-such")


def test_every_command_needs_a_ledger_or_has_its_own() -> None:
    assert {way.partition(", ")[0] for way in NEEDING} | OWN_LEDGER == all_commands()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where every AWS service is; whoever calls waits in line there."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        one.setblocking(False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{one.getsockname()[1]}")
        yield one


@pytest.mark.parametrize("config", [None, '[objects]\nbucket = "my-bucket"\n'])
@pytest.mark.parametrize("command", NEEDING)
def test_2_no_ledger_is_named(
    desk: Desk, tmp_path: Path, listener: socket.socket, command: str, config: str | None
) -> None:
    """A typo in a `cd`, or a variable that cron does not have, looks like neither "all is well" nor a new ledger."""
    if config is not None:
        (tmp_path / CONFIG_NAME).write_text(config)
    before = sorted(tmp_path.iterdir())
    words = NEEDING[command]
    document = desk.refused(*words, code=2, text="ledger.database_url is not set")
    assert (f"there is no {CONFIG_NAME} in {tmp_path};" in document["error"]) == (config is None)
    assert "'embedded'" in document["error"]
    assert cli.main(words) == 2
    assert desk.capsys.readouterr() == ("", f"error: {document['error']}\n")
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", [*READING, "init", "redo plan", "doctor"])
def test_130_and_143_of_a_command_that_waits_for_nothing(desk: Desk, command: str, number: int) -> None:
    desk.monkeypatch.setattr(context, "load_settings", raising(number, load_settings))
    desk.monkeypatch.setattr(doctor, "load_settings", raising(number, load_settings))
    desk.monkeypatch.setattr(cli, "init_template", raising(number, cli.init_template))
    desk.monkeypatch.setattr(sys, "argv", ["dispatch-ledger", *(READING | WORKING).get(command, [command]), "--json"])
    assert entry.main() == 128 + number
    desk.said("cancelled by signal")


@pytest.mark.parametrize("number", SIGNALS)
def test_130_and_143_of_a_demo(desk: Desk, number: int) -> None:
    desk.monkeypatch.setattr(demo, "connect_partners", raising(number, demo.connect_partners))
    assert cli.main(["demo", "--json"]) == 128 + number
    out, err = desk.capsys.readouterr()
    assert [run["outcome"] for run in json.loads(out)["runs"]] == ["cancelled"]
    assert err == f"error: cancelled by signal {number:d}; everything done so far is recorded\n"


def test_1_of_a_demo(desk: Desk) -> None:
    def fail(*_: Any) -> Any:
        raise UnavailableError("the embedded AWS did not start")

    desk.monkeypatch.setattr(demo, "embedded_postgres", fail)
    desk.refused("demo", code=1, text="did not start")


def test_of_up(desk: Desk) -> None:
    def fail(*_: Any) -> Any:
        raise UnavailableError("the embedded AWS did not start")

    desk.monkeypatch.setattr(up, "PARTS", [fail])
    desk.refused("up", code=1, text="did not start")
    with up.scene_of(load_settings(), Console(quiet=True), sampled=True):
        desk.refused("up", code=4, text="already")
    desk.set(dispatch__lease="soon")
    desk.refused("up", code=2, text="dispatch.lease")


def test_1_of_a_scheduler(full_desk: Desk) -> None:
    full_desk.set(ledger__database_url=NOWHERE)
    full_desk.refused("scheduler", code=1, text="ledger.database_url")


def test_1_of_a_reconcile(full_desk: Desk, world: World) -> None:
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("Query"), status(400, b'{"__type": "ValidationException", "message": "no"}')))
        full_desk.set(aws__endpoint_url=wire.url)
        assert cli.main(["reconcile", "--window", WINDOW, "--json"]) == 1
    out, err = full_desk.capsys.readouterr()
    assert json.loads(out)["windows"][0]["error"] in err


@pytest.fixture
def lost(full_desk: Desk, world: World, rig: Rig) -> Desk:
    """A window that was dispatched, and a ledger that knows nothing of it."""
    world.put(booking("r1", "2026-09-17T15:10:00Z"))
    assert rig.run().outcome == "completed"
    rig.tell("TRUNCATE claims, entries, attempts, runs, windows, pages CASCADE")
    full_desk.capsys.readouterr()  # what this process's own run has logged
    return full_desk


def test_1_and_4_of_a_recover(lost: Desk, world: World, planter: Planter) -> None:
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("GET bucket?list-type"), status(403)))
        lost.set(aws__endpoint_url=wire.url)
        lost.refused("recover", "--from-objects", code=1)
    lost.set(aws__endpoint_url=world.endpoint)
    planter.take_long(15)
    lost.refused("recover", "--from-objects", code=4, text="is being worked on")


@pytest.mark.parametrize("number", SIGNALS)
def test_130_and_143_of_a_recover(lost: Desk, world: World, number: int) -> None:
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("GET bucket?list-type"), callback(lambda _: signal.raise_signal(number)), times=1))
        lost.set(aws__endpoint_url=wire.url)
        lost.refused("recover", "--from-objects", code=128 + number, text="cancelled")
