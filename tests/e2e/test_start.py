"""A process that has hardly begun: signals during the imports, standard streams that are closed or full, and, of every
command, that a new interpreter comes to the same as the forked one that the other tests use.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aws_servers import World
from tests.fault.windows import fill
from tests.product import COMMAND, Done, Product
from tests.rig import WINDOW

SCRIPT = (str(Path(sys.executable).with_name("dispatch-ledger")),)
BAD = ("dispatch", "--window", "zz", "--json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_ends_in_one_line(number: signal.Signals) -> None:
    hook = (
        "import os, sys; from importlib.abc import MetaPathFinder\n"
        "class Hook(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        name == 'psycopg' and os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Hook())\n"
        "sys.argv = ['dispatch-ledger', 'dispatch', '--window', '2026-09-17T15:00:00Z', '--json']\n"
        "from ops.main import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", hook], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + number
    assert list(json.loads(done.stdout)) == ["error"]
    assert done.stderr.startswith("error: cancelled by signal")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "2>/dev/full", ">/dev/full"])
def test_a_closed_or_full_stream_changes_no_exit_code(closed: str) -> None:
    command = " ".join([*COMMAND, *BAD])
    done = subprocess.run(["/bin/sh", "-c", f"{command} {closed}"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_a_task_from_a_closed_standard_input_is_empty() -> None:
    command = " ".join([*COMMAND, "dispatch", "--task", "-", "--json"])
    done = subprocess.run(["/bin/sh", "-c", f"{command} <&-"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "empty" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("group", ["show", "db"])
def test_a_group_without_its_command_is_one_document(group: str) -> None:
    done = subprocess.run([*COMMAND, group, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert list(json.loads(done.stdout)) == ["error"]


EACH_RUN_ITS_OWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?")


def test_every_command_is_the_same_in_a_new_interpreter(product: Product, world: World) -> None:
    """None of them changes anything the second time, so two runs say the same but for their times and ids."""
    fill(world, WINDOW)
    product.dispatch(WINDOW).ended(0).books(confirmed=5)
    product.settings |= {"schedule.catch_up": "2h", "reconcile.grace": "0s"}
    product.run("dispatch", "--due").ended(0)
    plan = product.run("redo", "plan", "--window", WINDOW, "--reason", "r", "--json").ended(0).document["plan_id"]
    a_day = ("--from", WINDOW, "--to", "2026-09-17T16:00:00Z")
    for words in (
        ("--help",),
        ("db", "current"),
        ("db", "upgrade", "--json"),
        ("dispatch", "--window", WINDOW, "--json"),
        ("dispatch", "--due"),
        ("reconcile", "--window", WINDOW, "--json"),
        ("recover", "--from-objects"),
        ("redo", "show", plan),
        ("report", "windows", *a_day, "--format", "html"),
        ("findings", "list", "--json"),
        ("audit", "verify", *a_day),
        ("show", "window", WINDOW, "--json"),
        ("show", "record", f"{WINDOW[:13]}-a1"),
    ):
        forked, new = product.run(*words), product.run(*words, command=SCRIPT)
        assert _told(new) == _told(forked), words
        assert new.code in {0, 3}, new.err


def _told(done: Done) -> tuple[int, str, str]:
    return done.code, EACH_RUN_ITS_OWN.sub("…", done.out), EACH_RUN_ITS_OWN.sub("…", done.err)
