"""A child process that works jobs: kept for many, replaced when it dies, ended when nobody wants its answer."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dispatch.children import AttemptFailedError, Child
from dispatch.handlers import check_name
from ledger.errors import InputError, UnavailableError
from tests.product import until

ROOT = Path(__file__).parents[2]
HANDLERS = """
import gc, os, signal, sys, threading, time
from multiprocessing.connection import Connection

def work(payload):
    return {"pid": os.getpid(), "group": os.getpgid(0), "sum": payload["a"], "kind": type(payload["a"]).__name__}

def odd(payload):
    exec(payload["do"])

def forks(payload):
    # At the first job; the copy comes back from here.
    if payload["a"] == 0:
        copy = os.fork()
        if copy == 0:
            exec(payload["do"])
            return "the copy's"
        os.waitpid(copy, 0)
    return payload["a"]

def copy_sees(payload):
    (jobs,) = [one for one in gc.get_objects() if isinstance(one, Connection)]
    copy = os.fork()
    if copy == 0:
        os._exit(7 if jobs.closed else 8)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 7 and not jobs.closed

def leaves_copy(payload):
    if os.fork() == 0:
        open("copy", "w").write(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    while not (os.path.exists("copy") and open("copy").read()):
        time.sleep(0.01)
    exec(payload["do"])

def meddles(payload):
    # Answers in place of the loop that calls it: within the job, or when it has returned.
    (jobs,) = [one for one in gc.get_objects() if isinstance(one, Connection)]
    def answer():
        while payload["a"] == 1 and not os.path.exists("go"):
            time.sleep(0.01)
        jobs.send_bytes(b"d" + b"x" * 16 + b'"of another job"')
        open("answered", "w").close()
    if payload["a"] == 0:
        answer()
    if payload["a"] == 1:
        threading.Thread(target=answer, daemon=True).start()
    return {"pid": os.getpid(), "a": payload["a"]}

def returns(payload):
    async def pay():
        pass
    return eval(payload["do"])

async def slowly(payload):
    pass

def step_by_step(payload):
    yield payload

NUMBER = 7
"""

WRITE_PID_AND_WAIT = b"""{"do":"open('pid', 'w').write(str(os.getpid())); time.sleep(60)"}"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of handlers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.py").write_text(HANDLERS)
    return tmp_path


def made(function: str) -> Iterator[Child]:
    child = Child(f"given:{function}")
    child.start()
    yield child
    child.close()


@pytest.fixture
def worker(place: Path) -> Iterator[Child]:
    yield from made("work")


@pytest.fixture
def odd(place: Path) -> Iterator[Child]:
    yield from made("odd")


@pytest.fixture
def given(place: Path) -> Iterator[Callable[[str], Child]]:
    """Start a child with one of the handlers."""
    with ExitStack() as stack:
        yield lambda function: stack.enter_context(contextmanager(made)(function))


def nothing() -> None:
    """Watch without a word."""


def pid_of(answer: bytes) -> int:
    return int(json.loads(answer)["pid"])


def kill(child: Child, answer: bytes) -> None:
    """Kill the process that gave this answer, and wait until all its threads are dead."""
    os.kill(pid_of(answer), signal.SIGKILL)
    assert child._process is not None
    child._process.wait(20)


def test_one_is_kept_and_a_dead_one_is_replaced_without_a_word(worker: Child) -> None:
    first, second = (worker.work(b'{"a":1.50}', nothing).json for _ in range(2))
    assert first == second
    assert first.endswith(b'"sum":1.5}')
    assert b'"kind":"Decimal"' in first
    assert pid_of(first) != os.getpid()
    assert f'"group":{pid_of(first)}'.encode() in first, "the terminal's Ctrl-C is not for it"
    kill(worker, first)
    third = worker.work(b'{"a":1}', nothing).json
    assert pid_of(third) != pid_of(first)


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("sys.exit(4)", "SystemExit: 4"),
        ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()", "Mute"),
        ("os._exit(3)", "the handler's process ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", "the handler's process was killed by signal 15"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the handler's process was killed by signal 9"),
    ],
)
def test_what_a_handler_does_to_itself(odd: Child, do: str, said: str) -> None:
    with pytest.raises(AttemptFailedError) as failed:
        odd.work(f'{{"do":"{do}"}}'.encode(), nothing)
    assert failed.value.reason == said
    assert failed.value.kind == (said if "process" in said else said.split(":", maxsplit=1)[0])
    assert odd.work(b'{"do":"pass"}', nothing).json == b"null"


@pytest.mark.parametrize("do", ["pass", "raise ValueError('of the copy')", "sys.exit()", "raise KeyboardInterrupt"])
def test_a_copy_that_comes_back_from_the_handler_answers_nothing(
    given: Callable[[str], Child], do: str, capfd: pytest.CaptureFixture[str]
) -> None:
    child = given("forks")
    answers = [child.work(f'{{"a":{at},"do":"{do}"}}'.encode(), nothing).json for at in (0, 1, 2, 0, 3)]
    assert answers == [b"0", b"1", b"2", b"0", b"3"]
    told = "handler: a copy of its process, made with os.fork(), came back from it and was ended"
    assert capfd.readouterr().err.splitlines() == [told, told]


def test_a_copy_cannot_use_the_channel(given: Callable[[str], Child]) -> None:
    assert given("copy_sees").work(b"{}", nothing).json == b"true"


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="macOS before Python 3.13 does not say it in time")
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_dead_process_leaves_behind_is_ended(given: Callable[[str], Child], place: Path, end: str) -> None:
    with pytest.raises(AttemptFailedError, match=r"process (ended with exit code 3|was killed by signal 9)"):
        given("leaves_copy").work(f'{{"do":"{end}"}}'.encode(), nothing)
    until(lambda: not alive(int((place / "copy").read_text())), "the copy is dead", within_s=20)


def test_what_a_process_leaves_behind_ends_with_it(given: Callable[[str], Child], place: Path) -> None:
    child = given("leaves_copy")
    child.work(b'{"do":"pass"}', nothing)
    child.close()
    until(lambda: not alive(int((place / "copy").read_text())), "the copy is dead", within_s=20)


def test_an_answer_to_another_job_is_a_failed_attempt(given: Callable[[str], Child]) -> None:
    child = given("meddles")
    first = pid_of(child.work(b'{"a":2}', nothing).json)
    with pytest.raises(AttemptFailedError, match=r"answer that is not this job's.*os.fork") as failed:
        child.work(b'{"a":0}', nothing)
    assert failed.value.kind == failed.value.reason
    assert not alive(first)
    assert child.work(b'{"a":3}', nothing).json.startswith(b'{"a":3,')


def test_an_answer_that_nobody_asked_for_costs_no_job_an_attempt(given: Callable[[str], Child], place: Path) -> None:
    child = given("meddles")
    first = pid_of(child.work(b'{"a":1}', nothing).json)
    (place / "go").touch()
    until((place / "answered").exists, "it has answered once more")
    answer = child.work(b'{"a":2}', nothing).json
    assert answer.startswith(b'{"a":2,')
    assert pid_of(answer) != first


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("pay()", "the handler returned a coroutine; its body has not run"),
        ("(one for one in 'abc')", "the handler returned a generator; its body has not run"),
    ],
)
def test_work_that_has_not_run_is_a_failed_attempt(given: Callable[[str], Child], do: str, said: str) -> None:
    with pytest.raises(AttemptFailedError) as failed:
        given("returns").work(f'{{"do":"{do}"}}'.encode(), nothing)
    assert (failed.value.reason, failed.value.kind) == (said, said)


def test_a_result_that_cannot_be_kept_is_told(given: Callable[[str], Child]) -> None:
    result = given("returns").work(b'{"do":"object()"}', nothing)
    assert (b"left_out" in result.json, "cannot be written as JSON" in str(result.left_out)) == (True, True)
    assert given("returns").work(b'{"do":"1"}', nothing).left_out is None


def test_a_job_that_nobody_wants_any_more_is_ended(odd: Child, place: Path) -> None:
    wanted = threading.Event()

    def watch() -> None:
        if (place / "pid").exists() and (place / "pid").read_text():
            wanted.set()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        odd.work(WRITE_PID_AND_WAIT, watch)
    assert wanted.is_set()
    pid = int((place / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_ends_with_its_parent(place: Path) -> None:
    """Also in the middle of a job, when the parent is killed and can say nothing."""
    (place / "parent.py").write_text(
        "from dispatch.children import Child\n"
        "if __name__ == '__main__':\n"
        "    child = Child('given:leaves_copy')\n"
        "    child.start()\n"
        f"    child.work({WRITE_PID_AND_WAIT!r}, lambda: None)\n"
    )
    parent = subprocess.Popen([sys.executable, "parent.py"], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: (place / "pid").exists() and (place / "pid").read_text(), "the job is begun")
    finally:
        parent.kill()
        parent.wait(10)
    for name in ("pid", "copy"):
        pid = int((place / name).read_text())
        until(lambda pid=pid: not alive(pid), f"{name} is gone", within_s=20)  # type: ignore[misc]


def alive(pid: int) -> bool:
    """Say whether a process is there and is no zombie that waits for somebody to look."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("nowhere:work", "module nowhere cannot be imported .*PYTHONPATH"),
        ("given:no_such", "no function no_such"),
        ("given:NUMBER", "no function NUMBER"),
        ("given:slowly", "async"),
        ("given:step_by_step", "generator function .*give a plain function"),
        ("broken:work", "cannot be imported .SyntaxError"),
        ("leaving:work", "ended with exit code 5 while it loaded"),
        ("forking:work", "no function work"),
    ],
)
def test_a_handler_that_cannot_be_loaded(place: Path, handler: str, said: str) -> None:
    (place / "broken.py").write_text("def work(:")
    (place / "leaving.py").write_text("import os; os._exit(5)")
    (place / "forking.py").write_text("import os\nif (copy := os.fork()) == 0: len(3)\nos.waitpid(copy, 0)")
    child = Child(handler)
    child.start()
    with pytest.raises(InputError, match=said):
        child.await_ready(nothing)
    child.close()


def test_a_handler_that_is_broken_meanwhile_is_trouble_and_no_failed_attempt(worker: Child, place: Path) -> None:
    kill(worker, worker.work(b'{"a":1}', nothing).json)
    (place / "given.py").write_text("def work(:")
    with pytest.raises(UnavailableError, match="SyntaxError"):
        worker.work(b'{"a":1}', nothing)


@pytest.mark.parametrize("name", ["", "a", "a:", ":b", "a:b:c", "a.b:c d", "1a:b", "a..b:c", "a/b:c"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InputError, match="module:function"):
        check_name(name)
    assert check_name("rewards.point:grant") == "rewards.point:grant"
