"""The processes of a soak: a server, and workers that are killed and paused; each writes its log into a file."""

import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.product import COMMAND, until

NICE = ("nice", "-n", "10")
_ENDS_WITHIN_S = 60


@dataclass
class Member:
    """One process, and what it logs."""

    process: subprocess.Popen[bytes]
    log: Path
    wakes_s: float | None = None

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def awake(self) -> bool:
        return self.alive and self.wakes_s is None

    def events(self) -> Iterator[dict[str, Any]]:
        """Read what it has logged so far; a line that a kill has cut off is left out."""
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def has_claimed(self) -> bool:
        return '"job claimed"' in self.log.read_text(errors="replace")

    def in_hand(self) -> set[str]:
        """Give the jobs that it has claimed and not let go."""
        claimed: Counter[str] = Counter()
        for one in self.events():
            claimed[one.get("job", "")] += {"job claimed": 1, "job let go": -1}.get(one["event"], 0)
        return {job for job, count in claimed.items() if count > 0}

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)


@dataclass
class Crew:
    """Starts processes of the command line in one environment."""

    environment: dict[str, str]
    folder: Path
    everybody: list[Member] = field(default_factory=list)

    def start(self, *arguments: str) -> Member:
        number = len(self.everybody)
        log = self.folder / f"{number:03d}-{arguments[0]}.log"
        with log.open("wb") as errors, log.with_suffix(".out").open("wb") as output:
            process = subprocess.Popen(
                [*NICE, *COMMAND, "--log-level", "info", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=self.folder,
                env=self.environment,
            )
        self.everybody.append(Member(process, log))
        return self.everybody[-1]

    def kill(self, member: Member) -> None:
        member.send(signal.SIGKILL)
        member.process.wait(_ENDS_WITHIN_S)

    def end(self, *members: Member) -> list[int]:
        """Ask some to end; gives their exit codes."""
        for one in members:
            one.send(signal.SIGTERM)
        return [one.process.wait(_ENDS_WITHIN_S) for one in members]

    def close(self) -> None:
        """Leave nobody behind."""
        for one in self.everybody:
            if one.alive:
                self.kill(one)


@dataclass
class Server:
    """`serve` at one address, also after it was started again."""

    crew: Crew
    port: int = 0
    member: Member | None = None

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}/api/v1", timeout=30)

    def start(self) -> None:
        self.member = self.crew.start("serve", "--port", str(self.port))

    def stop(self) -> int:
        assert self.member is not None
        (code,) = self.crew.end(self.member)
        return code

    def ready(self) -> bool:
        assert self.member is not None
        assert self.member.alive, self.member.log.read_text()
        return self.ask("GET", "/jobs?limit=1") is not None

    def wait(self) -> None:
        until(self.ready, "the server answers")

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """Ask, and give the document; None when nobody answers, or later is better."""
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            answer = self.client.request(method, path, json=body, headers=headers)
        except httpx2.TransportError:
            return None
        if answer.status_code == 503:
            return None
        assert answer.status_code in {200, 202}, (method, path, answer.status_code, answer.text)
        return answer.json()
