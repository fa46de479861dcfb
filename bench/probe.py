"""What a process has used: its own processor time, and how far its memory has grown since its imports."""

import gc
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STATUS = Path("/proc/self/status")
_MIB = 1024 * 1024


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _resident_bytes() -> int:
    return _status_bytes("VmRSS") if _STATUS.exists() else _peak_bytes()


def _peak_bytes() -> int:
    if _STATUS.exists():
        return _status_bytes("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Usage:
    """Measures from its making on; make it right after the imports."""

    def __init__(self) -> None:
        gc.collect()
        self._forget_peak()
        self._base_bytes = _resident_bytes()
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self._ready_bytes = self._base_bytes

    @staticmethod
    def _forget_peak() -> None:
        clear = Path("/proc/self/clear_refs")
        if clear.exists():
            clear.write_text("5")  # resets VmHWM to what is resident now

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count time and processor time of the block: the work itself, without making clients and connections."""
        self._ready_bytes = _resident_bytes()
        usage, began_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        yield
        self.wall_s += time.perf_counter() - began_s
        now = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu_s += now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime

    def figures(self) -> dict[str, float]:
        peak = _peak_bytes()
        return {
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "base_mib": self._base_bytes / _MIB,
            "peak_mib": (peak - self._base_bytes) / _MIB,
            "peak_after_ready_mib": (peak - self._ready_bytes) / _MIB,
        }
