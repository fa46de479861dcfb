"""The processes that this one has started, asked of the system: for an end that waits for nothing."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ledger.clock import monotonic_s, wait_s

GONE_WITHIN_S = 2.0
_POLL_S = 0.005
_ROUNDS_MAX = 20  # each one stops what the last one's had started before they were stopped
_PS = ("/bin/ps", "-axo", "pid=,ppid=,state=")


class _Process(NamedTuple):
    parent: int
    state: str  # Z is a zombie: ended, and not yet asked for by its parent


def kill_descendants() -> None:
    """Kill every process that this one has started, and those that they have started, within 2 s.

    They are stopped first, so that none can start another one, or lose its parent, while the others are looked for.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS_MAX):
        found = list_descendants() - stopped
        if not found:
            break
        _signal(found, signal.SIGSTOP)
        stopped |= found
    _signal(stopped, signal.SIGKILL)
    deadline_s = monotonic_s() + GONE_WITHIN_S
    while stopped & _alive(_processes()).keys() and monotonic_s() < deadline_s:
        wait_s(_POLL_S)


def list_descendants() -> set[int]:
    """Return the numbers of the living processes that this one has started, and of those that they have started."""
    family, processes = {os.getpid()}, _alive(_processes())
    while more := {pid for pid, process in processes.items() if process.parent in family} - family:
        family |= more
    return family - {os.getpid()}


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _alive(processes: dict[int, _Process]) -> dict[int, _Process]:
    return {pid: process for pid, process in processes.items() if process.state not in "ZX"}


def _processes() -> dict[int, _Process]:
    return _from_proc() if Path("/proc/self/stat").exists() else _from_ps()


def _from_proc() -> dict[int, _Process]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                found[int(folder.name)] = _Process(int(parent), state)
    return found


def _from_ps() -> dict[int, _Process]:
    with subprocess.Popen(_PS, stdout=subprocess.PIPE, text=True) as listing:  # noqa: S603 - constants; macOS has no /proc
        lines = [line.split() for line in listing.stdout or ()]
    return {int(pid): _Process(int(parent), state[0]) for pid, parent, state in lines if int(pid) != listing.pid}
