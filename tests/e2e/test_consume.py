"""`consume` as its users meet it: killed children, a killed consumer, signals, and what is wrong said in one line."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ledger.settings import env_name
from ops import cli
from tests.aws_servers import World, booking
from tests.product import Product, until
from tests.rig import Rig
from tests.wire import FaultProxy, Rule, callback, drop_before, on

QUEUE = "reward-point"
HANDLER = """
import os, signal, time
from pathlib import Path

def grant(payload):
    name = payload["records"][0]["Id"]
    if name == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "waits":
        Path("begun").write_text(str(os.getpid()))
        while not Path("go").exists():
            time.sleep(0.01)
    with open("effects", "a") as effects:
        effects.write(name + "\\n")
    print("granted", name)
    return {"granted": name}

def one_by_one(payload):
    yield grant(payload)
"""


@pytest.fixture
def consuming(product: Product, world: World) -> Callable[..., Any]:
    """Starts a consumer of the world's queue, with a handler in the working directory."""
    (product.cwd / "rewards.py").write_text(HANDLER)
    set_up(world, VisibilityTimeout="3")

    def start(*arguments: str, **options: Any) -> Any:
        words = ("consume", "--queue", world.queues[QUEUE], "--handler", "rewards:grant", "--json", *arguments)
        return product.start(*words, **options)

    return start


def set_up(world: World, **attributes: str) -> None:
    world.sqs.set_queue_attributes(QueueUrl=world.queue_url(QUEUE), Attributes=attributes)  # type: ignore[arg-type]


def send(world: World, rig: Rig, *names: str) -> None:
    world.put_many(booking(name, f"2026-09-17T15:{at:02d}:00Z", member=at) for at, name in enumerate(names))
    assert rig.run().counts.confirmed == len(names)


def effects(place: Path) -> list[str]:
    return (place / "effects").read_text().split() if (place / "effects").exists() else []


def receipts(rig: Rig) -> Counter[tuple[Any, ...]]:
    return Counter(rig.rows("SELECT state, attempts, reason FROM receipts"))


def test_case_22_a_handler_that_kills_its_process(
    product: Product, consuming: Callable[..., Any], world: World, rig: Rig
) -> None:
    dead = world.sqs.create_queue(QueueName=f"dead-{world.suffix}")["QueueUrl"]
    arn = world.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    set_up(world, RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))
    good = [f"good{at}" for at in range(20)]
    send(world, rig, "killer", *good)
    done = consuming("--max", "23", "--concurrency", "2").done().ended(0)
    assert sorted(effects(product.cwd)) == sorted(good)
    document = done.document
    assert (document["handled"], document["completed"], document["failed"]) == (23, 20, 3)
    reason = "the handler's process was killed by signal 9"
    assert receipts(rig) == {("completed", 1, None): 20, ("failed", 3, reason): 1}
    url = world.queue_url(QUEUE)
    until(
        lambda: not world.sqs.receive_message(QueueUrl=url).get("Messages") and not world.message_count(QUEUE), "gone"
    )
    found = rig.reconcile(reconcile__receipt_within="0s")["windows"][0]["findings"]
    assert Counter(one["kind"] for one in found) == {"stale_source_status": 20, "overdue_receipt": 1}
    (late,) = [one["detail"] for one in found if one["kind"] == "overdue_receipt"]
    assert (late["receipt"], late["attempts"], late["in_dead_letter_queue"]) == ("failed", 3, True)


def test_killed_before_the_message_was_dropped(
    product: Product, consuming: Callable[..., Any], world: World, rig: Rig
) -> None:
    """The receipt is completed, the message comes again, and the effect does not."""
    send(world, rig, "a")
    with FaultProxy(world.endpoint) as wire:
        running: list[Any] = []
        wire.rules.append(Rule(on("DeleteMessage"), callback(lambda _: running[0].kill(), then=drop_before)))
        running.append(consuming(endpoint=wire.url))
        until(lambda: not running[0].running, "it is killed")
    assert world.message_count(QUEUE) == 1
    done = consuming("--max", "1").done().ended(0)
    assert done.document["already_completed"] == 1
    assert effects(product.cwd) == ["a"]
    assert world.message_count(QUEUE) == 0


def test_killed_in_the_middle_of_a_job(product: Product, consuming: Callable[..., Any], world: World, rig: Rig) -> None:
    """Its child ends with it; when the claim has run out, another consumer gets the job, and works it once."""
    send(world, rig, "waits")
    begun = product.cwd / "begun"
    running = consuming()
    until(lambda: begun.exists() and begun.read_text(), "the job is begun")
    running.kill()
    child = Path(f"/proc/{begun.read_text()}/stat")
    until(lambda: not child.exists() or " Z " in child.read_text(), "the child is gone")
    (product.cwd / "go").touch()
    consuming("--max", "1").done().ended(0)
    assert effects(product.cwd) == ["waits"]
    assert receipts(rig) == {("completed", 2, None): 1}


def test_a_signal_lets_the_job_in_hand_end(
    product: Product, consuming: Callable[..., Any], world: World, rig: Rig
) -> None:
    send(world, rig, "waits")
    running = consuming()
    until((product.cwd / "begun").exists, "the job is begun")
    running.signal(signal.SIGTERM)
    (product.cwd / "go").touch()
    done = running.done().ended(143)
    assert (done.document["completed"], done.document["handled"], effects(product.cwd)) == (1, 1, ["waits"])


# What is wrong, in one line


@pytest.fixture
def here(world: World, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The command line in this process, set up for the world and the ledger."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**world.environment(), env_name("ledger.database_url"): ledger_url}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "rewards.py").write_text(HANDLER)
    return world


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--handler", "rewards"], "module:function"),
        (["--handler", "nowhere:grant"], "module nowhere cannot be imported"),
        (["--handler", "rewards:no_such"], "no function no_such"),
        (["--handler", "rewards:one_by_one"], "handler rewards:one_by_one: it is, or wraps, a generator function"),
        (["--queue", "no-such-queue"], "'no-such-queue' does not exist in us-east-1; create it, or mend --queue"),
        (["--max", "0"], "--max"),
        (["--concurrency", "65"], "concurrency of 65 is not allowed; use 1 to 64"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    here: World, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["consume", "--json", "--queue", here.queues[QUEUE], "--handler", "rewards:grant", *options]
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert said in told.err
    assert said in json.loads(told.out)["error"]


def test_it_tells_a_person_what_became_of_the_messages(
    here: World, rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    here.sqs.send_message(QueueUrl=here.queue_url(QUEUE), MessageBody="hello")
    assert cli.main(["consume", "--queue", here.queues[QUEUE], "--handler", "rewards:grant", "--max", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "end with Ctrl-C" in told[0]
    assert told[-1] == "1 messages handled: 1 unreadable"


def test_a_handler_that_cannot_be_loaded_is_said_before_anything_else(
    here: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["consume", "--queue", here.queues[QUEUE], "--handler", "nowhere:grant"]) == 2
    told = capsys.readouterr()
    assert (told.out, "module nowhere cannot be imported" in told.err) == ("", True)


def test_ctrl_c_ends_it_with_130(
    here: World, rig: Rig, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.aws.inbox._WAIT_S", 1)
    send(here, rig, "waits")

    def interrupt() -> None:
        until((tmp_path / "begun").exists, "the job is begun")
        os.kill(os.getpid(), signal.SIGINT)
        (tmp_path / "go").touch()

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        code = cli.main(["consume", "--json", "--queue", here.queues[QUEUE], "--handler", "rewards:grant"])
        interrupting.result(30)
    told = capfd.readouterr()
    assert (code, json.loads(told.out.splitlines()[-1])["completed"]) == (130, 1)
    assert "granted waits" in told.err, "what a handler prints does not go among the document"
