"""A second signal ends a command at once, and what it prints is still one document, and one line of error."""

import json
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ledger.errors import UnavailableError
from ledger.settings import env_name
from ops import cli
from ops.api import server
from tests.aws_servers import World
from tests.job_kit import make_queues
from tests.product import Done, Product, Running, until
from tests.rig import WINDOW, Rig
from tests.wire import FaultProxy, Rule, hang, on

TERM, INT = signal.SIGTERM, signal.SIGINT


def signal_until_ended(running: Running, number: int) -> Done:
    """Signal again and again: the second may come before the first was looked at, and merge with it."""
    for _ in range(50):
        running.signal(number)
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(0.2)
            break
    return running.done().ended(128 + number)


def consume(world: World) -> list[str]:
    return ["consume", "--queue", world.queues["reward-point"], "--handler", "tests.handlers:nothing"]


def of_consume(document: Any, world: World) -> None:
    assert (document["queue"], document["handled"], document["completed"]) == (world.queues["reward-point"], 0, 0)


def of_worker(document: Any, _: World) -> None:
    assert document == {"jobs": {"completed": 0, "failed": 0, "returned": 0, "dropped": 0}}


def of_scheduler(document: Any, _: World) -> None:
    assert document == {"jobs": []}


def of_a_run(document: Any, _: World) -> None:
    assert "ended at once by a second signal" in document.pop("error")
    assert document == {}


COMMANDS: dict[str, tuple[Any, str, int, Any]] = {
    "consume": (consume, "GetQueueAttributes", TERM, of_consume),
    "worker": (lambda _: ["worker"], "GetQueueUrl", INT, of_worker),
    "scheduler": (lambda _: ["scheduler"], "DescribeTable", TERM, of_scheduler),
    "reconcile": (lambda _: ["reconcile", "--window", WINDOW], "Query", INT, of_a_run),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_one_document_of_a_command_that_hangs(product: Product, world: World, rig: Rig, name: str) -> None:
    words, operation, number, check = COMMANDS[name]
    product.settings |= make_queues(world)
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on(operation), hang(60)))
        running = product.start(*words(world), "--json", endpoint=wire.url, environ=environ)
        until(lambda: wire.count(operation), "it waits for an answer")
        done = signal_until_ended(running, number)
    check(done.document, world)
    assert f"ended at once by a second signal {int(number)}" in done.error


def test_the_one_document_of_a_plan_that_hangs(product: Product, world: World, rig: Rig) -> None:
    rig.run()
    plan = rig.plan()
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("DescribeTable"), hang(60)))
        running = product.start("redo", "apply", plan["plan_id"], "--json", endpoint=wire.url)
        until(lambda: wire.count("DescribeTable"), "it waits for an answer")
        done = signal_until_ended(running, TERM)
    of_a_run(done.document, world)


@pytest.fixture
def here(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(env_name("ledger.database_url"), ledger_url)


@pytest.mark.usefixtures("here")
def test_a_server_that_ends_before_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "run", lambda _, cancellation, *__: cancellation.ask(INT))
    assert cli.main(["serve", "--json"]) == 130
    assert "cancelled by signal 2" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.usefixtures("here")
def test_a_server_that_fails_after_it_was_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Any, cancellation: Any, host: str, port: int, ready: Any) -> None:
        ready(f"http://{host}:{port}")
        raise UnavailableError("it ended by itself")

    monkeypatch.setattr(server, "run", run)
    assert cli.main(["serve", "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {"url": "http://127.0.0.1:8000"}
    assert told.err == "error: it ended by itself\n"
