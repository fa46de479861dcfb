"""`python -m tests.soak`: real processes of the product, broken on purpose for as long as you like.

A loop of rounds. In each, bookings of some hours are dispatched, reconciled, redone and worked by real processes, while
these are killed and paused, PostgreSQL is stopped at once, and answers of AWS and of commits are lost; meanwhile the
bookings change. Then the product is left in peace, and everything it has left is compared with what must be. AWS is an
emulator, everything else is real. It ends with 0 when every round was right, 1 when one was not, 130 or 143 after a
signal.

A round's seed makes up its plan. The processes race, so the same seed does not repeat quite the same round.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.aws_servers import ministack_server, reset
from tests.soak.hands import Notes
from tests.soak.ledger import OwnPostgres
from tests.soak.round import Round, forget, play, prepared, warm_up

CONSOLE = Console(highlight=False, width=140)
KEPT_MAX, SHOWN_MAX, UNPLAYED_MAX = 20, 20, 3
VERDICTS = ("lost", "unexpected", "worked twice")
DONE = (
    "windows",
    "records",
    "changes of the source",
    "occurrences sent",
    "entries",
    "void entries",
    "entries of redos",
    "effects",
    "commands",
    "consumers",
)
TROUBLE = (
    "kills -9",
    "kills -9 of commands",
    "kills -9 of consumers",
    "immediate stops of PostgreSQL",
    "stops of PostgreSQL in its recovery",
    "pauses beyond the lease",
    "lost commit answers",
    "dropped AWS answers",
    "runs that died while finishing for the dead",
)
REPEATS = (
    "entries sent twice",
    "repeats that did no harm",
    "repeats dropped by FIFO",
    "repeats put off",
    "tried again in peace",
)


class SignalledError(BaseException):
    """A signal has asked the soak to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass
class Soak:
    """The soak as it goes on.

    Attributes:
        begun, rounds: how many rounds have begun, and how many were judged.
        failures: of each failed round, its seed and what was wrong.
    """

    options: argparse.Namespace
    began_s: float = field(default_factory=time.monotonic)
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    begun: int = 0
    rounds: int = 0
    did: Counter[str] = field(default_factory=Counter)
    failures: dict[int, list[str]] = field(default_factory=dict)
    ended_by: str = "its end"

    @property
    def lasted_s(self) -> float:
        return time.monotonic() - self.began_s

    def goes_on(self) -> bool:
        options = self.options
        if options.fail_fast and self.failures:
            return False
        if options.rounds is not None:
            return bool(self.begun < options.rounds)
        return bool(self.lasted_s < options.hours * 3600 + options.minutes * 60)

    def run(self, endpoint: str, postgres: OwnPostgres, folder: Path) -> None:
        """Play one round after another; ends early when several in a row could not be played at all."""
        unplayed = 0
        while self.goes_on() and unplayed < UNPLAYED_MAX:
            seed, notes = self.options.seed + self.begun, Notes()
            self.begun += 1
            try:
                with prepared(seed, endpoint, postgres, folder, notes) as one:
                    try:
                        play(one)
                        self.take(one)
                    finally:
                        self.did.update(notes.did)
                reset(endpoint)
                unplayed = 0
            except Exception:  # noqa: BLE001 - a fault of the soak itself is told as a failed round, and the next one played
                unplayed += 1
                self.fail(seed, [f"the soak failed: {traceback.format_exc()}"])

    def take(self, one: Round) -> None:
        """Take over what a round has come to."""
        self.rounds += 1
        verdict = "WRONG" if one.wrong else "right"
        CONSOLE.print(
            f"round {self.rounds}, seed {one.seed}: {verdict}, {len(one.commands)} processes, {self.lasted_s:.0f} s"
        )
        if one.wrong:
            self.fail(one.seed, one.wrong)
        if self.options.keep_all or (one.wrong and len(self.failures) <= KEPT_MAX):
            kept = self.options.keep / f"round-{one.seed}"
            one.keep(kept)
            CONSOLE.print(f"  kept in {kept}")

    def fail(self, seed: int, wrong: list[str]) -> None:
        """Note a round that was not right."""
        self.failures[seed] = wrong
        for line in wrong[:SHOWN_MAX]:
            CONSOLE.print(f"  {line[:2000]}", markup=False)
        CONSOLE.print(f"  the same plan again: python -m tests.soak --seed {seed} --rounds 1")

    def document(self) -> dict[str, Any]:
        """Give the outcome as it is written to a file."""
        did = self.did | Counter({"kills -9": self.did["kills -9 of commands"] + self.did["kills -9 of consumers"]})
        wrong = [line for lines in self.failures.values() for line in lines]
        return {
            "seed": self.options.seed,
            "began_at": self.began.isoformat(timespec="seconds"),
            "seconds": round(self.lasted_s, 1),
            "ended_by": self.ended_by,
            "rounds": self.rounds,
            "rounds_wrong": len(self.failures),
            "done": {name: did[name] for name in DONE},
            "trouble": {name: did[name] for name in TROUBLE},
            "repeats": {name: did[name] for name in REPEATS},
            "found": {name: sum(line.startswith(name) for line in wrong) for name in VERDICTS},
            "failures": {str(seed): lines for seed, lines in self.failures.items()},
        }

    def show(self) -> None:
        """Print what was done, and write it down."""
        document = self.document()
        table = Table("", "", "an hour", box=None, padding=(0, 2))
        for name in ("seed", "seconds", "ended_by", "rounds", "rounds_wrong"):
            table.add_row(name.replace("_", " "), str(document[name]))
        for part in ("done", "trouble", "repeats", "found"):
            table.add_section()
            for name, count in document[part].items():
                an_hour = f"{count * 3600 / max(self.lasted_s, 1):,.0f}" if part != "found" else ""
                table.add_row(name, f"{count:,}", an_hour)
        CONSOLE.print(table)
        if self.options.json:
            self.options.json.write_text(json.dumps(document, indent=1) + "\n")


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=0.0, help="5 when no time is given")
    parser.add_argument("--rounds", type=int, help="instead of a time: so many rounds")
    parser.add_argument("--seed", type=int, help="of the first round; each further one has the next. Drawn by default")
    parser.add_argument("--fail-fast", action="store_true", help="end with the first round that is wrong")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where failed rounds are kept")
    parser.add_argument("--keep-all", action="store_true", help="keep the right ones, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures are written, too")
    options = parser.parse_args(words)
    if not options.hours and not options.minutes:
        options.minutes = 5.0
    if options.seed is None:
        options.seed = random.randrange(10**6) * 1000
    options.keep = options.keep or Path(tempfile.gettempdir()) / f"dl-soak-kept-{options.seed}"
    return options


def end_on_signals() -> None:
    """Let the first signal end the soak in order; further ones are not heard."""

    def end(number: int, _: object) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)
        raise SignalledError(number)

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, end)


def main() -> int:
    """Run the soak; gives the exit code."""
    soak = Soak(parse(sys.argv[1:]))
    CONSOLE.print(f"seed {soak.options.seed}")
    end_on_signals()
    code = 0
    try:
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="dl-soak-", dir="/tmp")).resolve()
            folder.chmod(0o755)  # PostgreSQL's user must get in when root runs this
            stack.callback(forget, folder)
            postgres = stack.enter_context(OwnPostgres(folder / "ledger"))
            endpoint = stack.enter_context(ministack_server())
            warm_up(folder)
            soak.began_s = time.monotonic()
            soak.run(endpoint, postgres, folder)
    except SignalledError as signalled:
        soak.ended_by = signal.Signals(signalled.number).name
        code = 128 + signalled.number
    soak.show()
    return 1 if soak.failures else code


if __name__ == "__main__":
    sys.exit(main())
