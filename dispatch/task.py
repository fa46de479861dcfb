"""Reading the task that starts a job. Pure."""

from typing import Any

import msgspec

from ledger.errors import InputError
from ledger.instants import Window, window_of_execute_time

_EXAMPLE = '{"Data": "{\\"ExecuteTime\\": \\"2026-09-17T16:01:10Z\\"}"}'
_NESTING_MAX = 3


def parse_task(raw: bytes) -> Window:
    """Return the window that a task asks for.

    Takes `{"Data": "<JSON text>"}`, `{"Data": {…}}` or the inner object `{"ExecuteTime": …}` alone.

    Raises:
        InputError: when the task is anything else, saying what was expected.
    """
    if not raw.strip():
        raise InputError(f"the task is empty; give {_EXAMPLE}")
    task = _decode(raw, "the task")
    for _ in range(_NESTING_MAX):
        if not isinstance(task, dict):
            raise InputError(f"the task is not a JSON object; give {_EXAMPLE}")
        if "ExecuteTime" in task:
            return _window(task["ExecuteTime"])
        if "Data" not in task:
            raise InputError(f"the task has neither Data nor ExecuteTime; give {_EXAMPLE}")
        task = task["Data"]
        if isinstance(task, str):
            task = _decode(task.encode("utf-8", "surrogatepass"), "Data of the task")
    raise InputError(f"the task is nested too deeply; give {_EXAMPLE}")


def _decode(raw: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(raw.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{what} is not JSON ({error}); give {_EXAMPLE}") from None


def _window(value: object) -> Window:
    if not isinstance(value, str):
        raise InputError(f"ExecuteTime is not text but {type(value).__name__}; give {_EXAMPLE}")
    return window_of_execute_time(value)
