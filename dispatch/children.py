"""The parent's side of a child process: one that is kept for many jobs, and replaced when it dies."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path

from dispatch import child
from ledger import clock
from ledger.errors import InputError, UnavailableError

_LOADS_WITHIN_S = 60.0
_LOOK_S = 0.1
_ENDS_WITHIN_S = 1.0
# A fresh interpreter with the parent's import path; multiprocessing would run the parent's main module again.
_BEGIN = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from dispatch.child import main; main()"


class AttemptFailedError(Exception):
    """A job was not done.

    Attributes:
        reason: what the receipt keeps; may tell what is in the job.
        kind: the same for the log, without anything that is in the job.
    """

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(kind)
        self.reason = reason
        self.kind = kind


class Child:
    """A process that works jobs with one handler.

    Args:
        handler: `module:function`.
        tracebacks: whether an exception's traceback is written to standard error.
    """

    def __init__(self, handler: str, *, tracebacks: bool = False) -> None:
        self._handler, self._tracebacks = handler, tracebacks
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs: connection.Connection[bytes, bytes]
        self._life: int
        self._ready = False

    def start(self) -> None:
        """Start the process; it loads its handler meanwhile."""
        self.close()
        self._jobs, theirs = connection.Pipe()
        life, self._life = os.pipe()  # it ends when nobody holds our end any more
        given = [
            json.dumps([*map(str, sys.path)]),
            theirs.fileno(),
            life,
            self._handler,
            Path.cwd(),
            int(self._tracebacks),
        ]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, "-c", _BEGIN, *map(str, given)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), life),
                start_new_session=True,  # Ctrl-C at the terminal is for the parent, who lets the job in hand end
            )
        finally:
            theirs.close()
            os.close(life)

    def await_ready(self, watch: Callable[[], None]) -> None:
        """Wait until the handler is loaded.

        Args:
            watch: called every moment; what it raises ends the wait.

        Raises:
            InputError: when the handler cannot be loaded.
        """
        if self._ready:
            return
        give_up_s = clock.monotonic_s() + _LOADS_WITHIN_S
        answer = self._answer(watch, give_up_s)
        if answer is None:
            end = self._end()
            raise InputError(f"handler {self._handler}: its process {end} while it loaded its module; mend it")
        if answer[:1] != child.READY:
            self.close()
            raise InputError(answer[1:].decode("utf-8", "replace"))
        self._ready = True

    def work(self, body: bytes, watch: Callable[[], None]) -> bytes:
        """Have a document worked; returns the handler's result as JSON.

        Args:
            watch: called every moment; what it raises ends the process, and the job.

        Raises:
            AttemptFailedError: when the handler raised, or its process was lost.
            UnavailableError: when a new process could not load the handler.
        """
        self._hand_over(body, watch)
        answer = self._answer(watch, None)
        if answer is None:
            lost = f"the handler's process {self._end()}"
            raise AttemptFailedError(lost, lost)
        if answer[:1] != child.DONE:
            reason = answer[1:].decode("utf-8", "replace")
            raise AttemptFailedError(reason, reason.partition(":")[0])
        return answer[1:]

    def _hand_over(self, body: bytes, watch: Callable[[], None]) -> None:
        """Give a job to the process; to a new one when it has died meanwhile, which is no fault of this job."""
        for _ in range(2):
            try:
                if self._process is None or self._process.poll() is not None:
                    self.start()
                self.await_ready(watch)
                self._jobs.send_bytes(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close()
            except InputError as error:
                raise UnavailableError(str(error)) from error
            else:
                return
        raise UnavailableError("the handler's process dies before it takes a job; see standard error")

    def _answer(self, watch: Callable[[], None], give_up_s: float | None) -> bytes | None:
        """Return the next answer, None when the process is lost."""
        assert self._process is not None, "it was started"
        while True:
            try:
                ended = self._process.poll() is not None
                if self._jobs.poll(0 if ended else _LOOK_S):
                    return self._jobs.recv_bytes()
                if ended or (give_up_s is not None and clock.monotonic_s() > give_up_s):
                    return None
                watch()
            except (EOFError, ConnectionResetError):
                return None
            except BaseException:
                self.close()
                raise

    def _end(self) -> str:
        """End the process, and say how it ended."""
        assert self._process is not None, "it was started"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN_S)
        code = self._process.returncode
        self.close()
        if code is None:
            return "did not answer and was ended"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """End the process at once, whatever it does, and whatever it has started in its process group."""
        if self._process is None:
            return
        process, self._process, self._ready = self._process, None, False
        self._jobs.close()
        os.close(self._life)
        if process.returncode is None:  # else its number may be somebody else's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
