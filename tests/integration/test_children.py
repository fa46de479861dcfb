"""A child process that works jobs: kept for many, replaced when it dies, ended when nobody wants its answer."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.child import check_name
from dispatch.children import AttemptFailedError, Child
from ledger.errors import InputError, UnavailableError
from tests.product import until

ROOT = Path(__file__).parents[2]
HANDLERS = """
import os, signal, sys, time

def work(payload):
    return {"pid": os.getpid(), "group": os.getpgid(0), "sum": payload["a"], "kind": type(payload["a"]).__name__}

def odd(payload):
    exec(payload["do"])

async def slowly(payload):
    pass

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


def nothing() -> None:
    """Watch without a word."""


def pid_of(answer: bytes) -> int:
    return int(answer.partition(b'"pid":')[2].partition(b",")[0])


def killed(answer: bytes) -> None:
    """Kill the process that gave this answer, and wait until it is dead."""
    os.kill(pid_of(answer), signal.SIGKILL)
    until(lambda: not alive(pid_of(answer)), "it is dead")


def test_one_is_kept_and_a_dead_one_is_replaced_without_a_word(worker: Child) -> None:
    first, second = (worker.work(b'{"a":1.50}', nothing) for _ in range(2))
    assert first == second
    assert first.endswith(b'"sum":1.5}')
    assert b'"kind":"Decimal"' in first
    assert pid_of(first) != os.getpid()
    assert f'"group":{pid_of(first)}'.encode() in first, "the terminal's Ctrl-C is not for it"
    killed(first)
    third = worker.work(b'{"a":1}', nothing)
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
    assert odd.work(b'{"do":"pass"}', nothing) == b"null"


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
        "    child = Child('given:odd')\n"
        "    child.start()\n"
        f"    child.work({WRITE_PID_AND_WAIT!r}, lambda: None)\n"
    )
    parent = subprocess.Popen([sys.executable, "parent.py"], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: (place / "pid").exists() and (place / "pid").read_text(), "the job is begun")
    finally:
        parent.kill()
        parent.wait(10)
    pid = int((place / "pid").read_text())
    until(lambda: not alive(pid), "the child is gone", within_s=20)


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
        ("broken:work", "cannot be imported .SyntaxError"),
        ("leaving:work", "ended with exit code 5 while it loaded"),
    ],
)
def test_a_handler_that_cannot_be_loaded(place: Path, handler: str, said: str) -> None:
    (place / "broken.py").write_text("def work(:")
    (place / "leaving.py").write_text("import os; os._exit(5)")
    child = Child(handler)
    child.start()
    with pytest.raises(InputError, match=said):
        child.await_ready(nothing)
    child.close()


def test_a_handler_that_is_broken_meanwhile_is_trouble_and_no_failed_attempt(worker: Child, place: Path) -> None:
    killed(worker.work(b'{"a":1}', nothing))
    (place / "given.py").write_text("def work(:")
    with pytest.raises(UnavailableError, match="SyntaxError"):
        worker.work(b'{"a":1}', nothing)


@pytest.mark.parametrize("name", ["", "a", "a:", ":b", "a:b:c", "a.b:c d", "1a:b", "a..b:c", "a/b:c"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InputError, match="module:function"):
        check_name(name)
    assert check_name("rewards.point:grant") == "rewards.point:grant"
