"""What is drawn from the seed: which commands are run, and what befalls each process, where and when."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

What = Literal["nothing", "kill", "pause", "lose commits", "drop answers", "terminate"]
Where = Literal["time", "call", "commit"]
At = int | str

LEASE_S = 3.0
_WHATS: dict[What, int] = {
    "nothing": 12,
    "kill": 42,
    "pause": 9,
    "lose commits": 20,
    "drop answers": 13,
    "terminate": 4,
}


# What hurts most: what is done just before and just after these.
CALLS = ("SendMessageBatch", "SendMessageBatch", "PUT object", "BatchGetItem", "Query", "GET bucket?list-type")
COMMITS = (
    "INSERT INTO entries",
    "INSERT INTO open_attempts",
    "INSERT INTO attempts",
    "INSERT INTO findings",
    "INSERT INTO pages",
    "UPDATE plans",
)
WORKER_CALLS = ("ReceiveMessage", "DeleteMessage", "GET object", "ChangeMessageVisibility")
WORKER_COMMITS = ("INSERT INTO receipts", "INSERT INTO soak.effects", "INSERT INTO soak.effects")
_PLACES: dict[What, tuple[Where, ...]] = {"lose commits": ("commit",), "drop answers": ("call",)}


@dataclass(frozen=True)
class Trouble:
    """What befalls a process.

    Attributes:
        where: at a time after its start, at one of its calls to AWS, or at one of its commits.
        at: which call or commit: its number, from 1, or what it does, of which the `skip`-th one is meant, from 0. Of
            answers that are dropped or lost, the first of them.
        after: whether the call or commit takes effect first.
        seconds: when, for a time; how long, for a pause.
        count: how many answers are dropped or lost, one after another.
        late: of a pause at a call, whether the call itself takes effect only when the process goes on.
    """

    what: What = "nothing"
    where: Where = "time"
    at: At = 1
    skip: int = 0
    after: bool = False
    start_s: float = 0.0
    lasts_s: float = 0.0
    count: int = 1
    late: bool = False

    def __str__(self) -> str:
        place = f"after {self.start_s:.2f} s" if self.where == "time" else f"at {self.where} {self.at}+{self.skip}"
        more = {"pause": f" for {self.lasts_s:.1f} s", "lose commits": f", {self.count} of them"}.get(self.what, "")
        side = "" if self.where == "time" else " after its effect" if self.after else " before its effect"
        return "nothing" if self.what == "nothing" else f"{self.what} {place}{side}{more}"


def draw_trouble(
    dice: random.Random, start_max_s: float, calls: Sequence[str] = CALLS, commits: Sequence[str] = COMMITS
) -> Trouble:
    """Draw what befalls one process; a time is drawn from its first `start_max_s` seconds."""
    (what,) = dice.choices(list(_WHATS), list(_WHATS.values()))
    where = dice.choice(_PLACES.get(what, ("time", "call", "call", "commit", "commit", "commit")))
    number = min(1 + int(dice.expovariate(1 / 4)), 25)
    deed = dice.choice(calls if where == "call" else commits)
    return Trouble(
        what,
        where,
        at=number if dice.random() < 0.25 else deed,
        skip=dice.choice([0, 0, 0, 0, 1, 2]),
        after=dice.random() < 0.5,
        start_s=dice.uniform(0.05, start_max_s),
        lasts_s=LEASE_S * dice.uniform(1.15, 1.8),
        count=dice.choice([1, 1, 2, 3, 5]),
        late=dice.random() < 0.5,
    )


def draw_command(dice: random.Random, windows: list[str], plans: list[str], *, redo: bool) -> list[str]:
    """Draw one command of the operators; redos only when there may be something to do again."""
    window = dice.choice(windows)
    some = [word for one in dice.sample(windows, dice.randrange(1, len(windows) + 1)) for word in ("--window", one)]
    plan = ("redo", "plan", "--window", window, "--reason", "soak")
    commands: dict[tuple[str, ...], int] = {
        ("dispatch", "--window", window): 34,
        ("dispatch", "--due"): 20,
        ("reconcile", *some): 16,
        ("reconcile", "--lookback", "6h"): 8,
        ("reconcile", *some, "--delete-orphans"): 3,
        ("reconcile", *some, "--no-repair"): 2,
        ("dispatch", "--window", window, "--dry-run"): 2,
    }
    if redo:
        commands |= {plan: 4, (*plan, "--include-worked"): 4, (*plan, "--record"): 3, (*plan, "--group"): 6}
        commands[*plan, "--include-worked", "--group"] = 8
    if redo and plans:
        commands |= {("redo", "apply", dice.choice(plans[-2:])): 30, ("redo", "cancel", dice.choice(plans[-2:])): 1}
    (words,) = dice.choices(list(commands), list(commands.values()))
    return list(words)
