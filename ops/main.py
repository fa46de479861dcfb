"""Where a process begins: ready for signals and closed streams before anything large is imported."""

import os
import signal
import sys
from typing import Any

from ledger.errors import CancelledError


def _listen(number: int, _frame: Any) -> None:
    raise CancelledError(number)


def main() -> int:
    """Run the command line; returns the exit code. Until a command takes the signals over, one ends the process."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - it stays open as long as the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _listen)
        from ops import cli  # noqa: PLC0415 - a second's worth of imports, during which a signal may come

        return cli.main()
    except CancelledError as error:
        _stop_listening()
        if "--json" in sys.argv and not _is_told():
            sys.stdout.write(f'{{"error":"{error}"}}\n')
        sys.stderr.write(f"error: {error}\n")
        return 128 + error.signal_number
    finally:
        _stop_listening()


def _is_told() -> bool:
    """Say whether the command has written its document; it can't have before it was imported."""
    context = sys.modules.get("ops.context")
    return context is not None and context.CONTEXT.told


def _stop_listening() -> None:
    """Let no further signal change how the process ends: what it has to say is said, and the interpreter goes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
