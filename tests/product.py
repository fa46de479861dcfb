"""The product as its users meet it: the command line in a process of its own, with nothing of this process inside."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ledger.settings import env_name
from tests.aws_servers import World
from tests.forks import COMMAND_LINE, Forked
from tests.rig import FLOWS
from tests.scratch import SCRATCH

COMMAND = (sys.executable, "-m", "ops.main")
ENDS_WITHIN_S = 90.0
RUN_FIELDS = [
    "run_id",
    "pipeline",
    "window",
    "flow",
    "page_size",
    "outcome",
    "cause",
    "pages",
    "evaluated",
    "outside",
    "not_due",
    "set_aside",
    "due",
    "already_claimed",
    "claimed",
    "entries",
    "confirmed",
    "recovered",
    "started_at",
    "finished_at",
    "error",
]


def until(condition: Callable[[], Any], what: str, *, within_s: float = ENDS_WITHIN_S) -> Any:
    """Wait for a condition, looking every few milliseconds, and give what it gave."""
    deadline, pause = time.monotonic() + within_s, threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        pause.wait(0.01)
    return found


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document that stands on standard output, and nothing else."""
        assert self.out.endswith("\n"), (self.code, self.out[-500:], self.err[-2000:])
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that stands on standard error."""
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        return self.err.removeprefix("error: ").rstrip("\n")

    def ended(self, code: int) -> Self:
        """Check the exit code."""
        assert self.code == code, f"exit code {self.code}\n{self.out[-3000:]}\n{self.err[-3000:]}"
        return self

    def books(self, **expected: Any) -> dict[str, Any]:
        """Check the document of a single run: its fields, its sums, and what else is expected of it."""
        return check_run(self.document, **expected)


def check_run(document: dict[str, Any], **expected: Any) -> dict[str, Any]:
    """Check the document of one run (CONTRACT: `dispatch --json`)."""
    assert set(document) == set(RUN_FIELDS)
    assert set(document["window"]) == {"start", "end"}
    if document["outcome"] == "completed":
        parts = ("outside", "not_due", "set_aside", "due")
        assert document["evaluated"] == sum(document[name] for name in parts), document
        assert document["due"] == document["already_claimed"] + document["claimed"], document
        assert document["error"] is None
    else:
        assert isinstance(document["error"], str)
        assert "\n" not in document["error"]
    assert document | expected == document, {name: (document[name], value) for name, value in expected.items()}
    return document


@dataclass
class Running:
    """A command that has been started."""

    process: subprocess.Popen[str] | Forked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        if isinstance(self.process, Forked):
            self.process.close()
            return
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it as the kernel does, and wait until it is gone."""
        self.process.kill()
        self.process.wait(10)

    def done(self, within_s: float = ENDS_WITHIN_S) -> Done:
        """Wait for its end."""
        with self:
            out, err = self.process.communicate(timeout=within_s)
            return Done(self.process.wait(), out, err)


@dataclass
class Product:
    """Starts commands that are configured, by environment variables, for one world and one ledger.

    Args:
        world: where its bookings, objects and queues are; None leaves all of that unset.
        cwd: the working directory, without a configuration file unless the test writes one.
        settings: settings by dotted key for every command; None as a value takes a variable away.
    """

    world: World | None
    ledger_url: str | None
    cwd: Path
    flow: str = "staged"
    settings: dict[str, str | None] = field(default_factory=dict)
    started: list[Running] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind, whatever became of the test."""
        for one in self.started:
            with one:
                pass

    def start(
        self,
        *arguments: str,
        endpoint: str | None = None,
        flow: str | None = None,
        environ: dict[str, str | None] | None = None,
        command: Sequence[str] | None = None,
        stdin: str | None = None,
        impatient: bool = False,
        entry: str = COMMAND_LINE,
        **settings: str | None,
    ) -> Running:
        """Start a command; `dispatch__page_size="2"` sets `dispatch.page_size`, `environ` sets variables by name.

        It is forked from a server that has imported the product; with a `command`, such as COMMAND, it begins as that.
        An `impatient` one waits a fiftieth of the usual time between tries; it tries as often as any other. The `entry`
        is the module whose `main` it runs.
        """
        environment = self._environment(endpoint, flow or self.flow, settings, environ or {})
        if command is None:
            forked = Forked(arguments, environment, self.cwd, stdin, impatient=impatient, entry=entry)
            self.started.append(Running(forked))
            return self.started[-1]
        assert not impatient, "only a forked process can be told before it begins"
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env=environment,
        )
        if stdin is not None:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # who knows enough need not read on
                process.stdin.write(stdin)
                process.stdin.flush()
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdin = None
        self.started.append(Running(process))
        return self.started[-1]

    def run(self, *arguments: str, **options: Any) -> Done:
        """Run a command to its end."""
        return self.start(*arguments, **options).done()

    def dispatch(self, window: str, **options: Any) -> Done:
        """Dispatch one window; the document is on standard output."""
        return self.run("dispatch", "--window", window, "--json", **options)

    def start_dispatch(self, window: str, **options: Any) -> Running:
        """Start dispatching one window."""
        return self.start("dispatch", "--window", window, "--json", **options)

    def _environment(
        self, endpoint: str | None, flow: str, settings: dict[str, str | None], environ: dict[str, str | None]
    ) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("DISPATCH_LEDGER", "_N1CONFIG"))
        }
        chosen: dict[str, str | None] = inherited | {"TMPDIR": str(SCRATCH)}
        if self.world is not None:
            chosen |= self.world.environment(endpoint)
            chosen |= {env_name(key): value for key, value in FLOWS[flow].items()}
        if self.ledger_url is not None:
            chosen[env_name("ledger.database_url")] = self.ledger_url
        dotted = self.settings | {key.replace("__", "."): value for key, value in settings.items()}
        chosen |= {env_name(key): value for key, value in dotted.items()}
        chosen |= environ
        return {name: value for name, value in chosen.items() if value is not None}
