"""A process that has hardly begun: signals during the imports, and standard streams that are closed or full."""

import json
import signal
import subprocess
import sys

import pytest

from tests.product import COMMAND

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
