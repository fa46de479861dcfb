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
from dispatch.handlers import Result
from ledger import clock
from ledger.errors import InputError, UnavailableError

_LOADS_WITHIN_S = 60.0
_LOOK_S = 0.1
_ENDS_WITHIN_S = 1.0
_END_LOOK_S = 0.01
_STRAY = (
    "the handler's process gave an answer that is not this job's, and was ended; a handler that calls os.fork() must "
    "end the copy with os._exit()"
)
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


class _StrayAnswerError(Exception):
    """The process has answered what it was not asked."""


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
        try:
            answer = self._answer(child.LOADING, watch, give_up_s)
        except _StrayAnswerError:
            raise InputError(f"handler {self._handler}: {_STRAY}") from None
        if answer is None:
            end = self._end()
            raise InputError(f"handler {self._handler}: its process {end} while it loaded its module; mend it")
        kind, text = answer
        if kind != child.READY:
            self.close()
            raise InputError(text.decode("utf-8", "replace"))
        self._ready = True

    def work(self, body: bytes, watch: Callable[[], None]) -> Result:
        """Have a document worked; returns the handler's result.

        Args:
            watch: called every moment; what it raises ends the process, and the job.

        Raises:
            AttemptFailedError: when the handler raised, or its process was lost, or answered what it was not asked.
            UnavailableError: when a new process could not load the handler.
        """
        token = os.urandom(child.TOKEN_BYTES)
        self._hand_over(token, body, watch)
        try:
            answer = self._answer(token, watch, None)
        except _StrayAnswerError:
            raise AttemptFailedError(_STRAY, _STRAY) from None
        if answer is None:
            lost = f"the handler's process {self._end()}"
            raise AttemptFailedError(lost, lost)
        kind, text = answer
        if kind == child.DONE:
            return Result(text)
        if kind == child.LEFT_OUT:
            return Result(text, str(json.loads(text)["left_out"]))
        reason = text.decode("utf-8", "replace")
        raise AttemptFailedError(reason, reason.partition(":")[0])

    def _hand_over(self, token: bytes, body: bytes, watch: Callable[[], None]) -> None:
        """Give a job to the process; to a new one when it has died meanwhile, which is no fault of this job."""
        for _ in range(2):
            try:
                if not self._is_waiting():
                    self.start()
                self.await_ready(watch)
                self._jobs.send_bytes(token)
                self._jobs.send_bytes(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close()
            except InputError as error:
                raise UnavailableError(str(error)) from error
            else:
                return
        raise UnavailableError("the handler's process dies before it takes a job; see standard error")

    def _is_waiting(self) -> bool:
        """Say whether the process lives and, once it is ready, has said nothing unasked."""
        if self._process is None or self._has_ended():
            return False
        return not (self._ready and self._jobs.poll(0))

    def _answer(self, token: bytes, watch: Callable[[], None], give_up_s: float | None) -> tuple[bytes, bytes] | None:
        """Return the kind and the text of the answer to this token, None when the process is lost."""
        try:
            while True:
                ended = self._has_ended()
                if self._jobs.poll(0 if ended else _LOOK_S):
                    return self._received(token)
                if ended or (give_up_s is not None and clock.monotonic_s() > give_up_s):
                    return None
                watch()
        except BaseException:
            self.close()
            raise

    def _received(self, token: bytes) -> tuple[bytes, bytes] | None:
        try:
            answer = self._jobs.recv_bytes(child.ANSWER_BYTES_MAX)
        except (EOFError, OSError):  # also in the middle of it
            return None
        if answer[1 : 1 + len(token)] != token:
            raise _StrayAnswerError
        return answer[:1], answer[1 + len(token) :]

    def _has_ended(self) -> bool:
        """Say whether the process has ended; its number, and its group's, stay its own until `close`."""
        assert self._process is not None, "it was started"
        with suppress(ChildProcessError, AttributeError):  # macOS has no waitid before Python 3.13
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._process.poll() is not None

    def _end(self) -> str:
        """End the process, and say how it ended."""
        assert self._process is not None, "it was started"
        process, give_up_s = self._process, clock.monotonic_s() + _ENDS_WITHIN_S
        while not (ended := self._has_ended()) and clock.monotonic_s() < give_up_s:
            clock.wait_s(_END_LOOK_S)
        self.close()
        code = process.returncode
        if not ended:
            return "did not answer and was ended"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """End the process at once, whatever it does, and whatever is in its process group, also when it is dead."""
        if self._process is None:
            return
        process, self._process, self._ready = self._process, None, False
        self._jobs.close()
        os.close(self._life)
        if process.returncode is None:  # else its number may be somebody else's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
