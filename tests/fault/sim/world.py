"""The made-up AWS: a table whose index lags, a bucket, and queues that deliver twice, late and out of order.

It only holds state and keeps a history of it; who calls what, and what goes wrong on the way, is `ports`' business.
"""

import hashlib
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Item = dict[str, dict[str, Any]]
DEDUPLICATED_S = 300.0


@dataclass
class Version:
    """A record as it was from a moment on; no item: it was not there.

    Attributes:
        from_s: when the base table had it.
        shown_s: when the index had it.
    """

    from_s: float
    shown_s: float
    item: Item | None


class Table:
    """A booking table with an index over date and time.

    Attributes:
        versions: every record's versions, by id, oldest first.
    """

    def __init__(self, name: str, index: str) -> None:
        self.name, self.index = name, index
        self.versions: dict[str, list[Version]] = {}

    def write(self, identity: str, item: Item | None, now_s: float, lag_s: float) -> None:
        """Put or remove a record; the index follows, and never shows an older version after a newer one."""
        versions = self.versions.setdefault(identity, [])
        shown_s = max([now_s + lag_s, *(one.shown_s for one in versions[-1:])])
        versions.append(Version(now_s, shown_s, item))

    def read(self, identity: str, now_s: float) -> Item | None:
        """Read a record as it is."""
        found = [one.item for one in self.versions.get(identity, ()) if one.from_s <= now_s]
        return found[-1] if found else None

    def current(self, now_s: float) -> dict[str, Item]:
        """Return every record as it is."""
        read = {identity: self.read(identity, now_s) for identity in sorted(self.versions)}
        return {identity: item for identity, item in read.items() if item is not None}

    def indexed(self, date: str, first: str, last: str, now_s: float) -> list[tuple[tuple[str, str], Item]]:
        """Return what the index shows of a range, in its order, by (time, id)."""
        found = []
        for identity, versions in self.versions.items():
            shown = [one.item for one in versions if one.shown_s <= now_s]
            item = shown[-1] if shown else None
            if item is None or item["BookingDateUTC"]["S"] != date:
                continue
            time = item["BookingTimeUTC"]["S"]
            if first <= time <= last:
                found.append(((time, identity), item))
        return sorted(found, key=lambda one: one[0])

    def page(
        self, date: str, first: str, last: str, after: tuple[str, str] | None, limit: int, now_s: float
    ) -> tuple[list[Item], tuple[str, str] | None]:
        """Return one page after a key, and the key that it ends with when there may be more."""
        found = self.indexed(date, first, last, now_s)
        at = 0 if after is None else bisect_right([key for key, _ in found], after)
        taken = found[at : at + limit]
        more = len(taken) == limit and bool(taken)
        return [item for _, item in taken], taken[-1][0] if more else None


@dataclass
class Stored:
    """An object in the bucket."""

    body: bytes
    metadata: dict[str, str]
    modified_at: datetime
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def etag(self) -> str:
        """What S3 calls this content."""
        return f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'


@dataclass
class Waiting:
    """A message in a queue.

    Attributes:
        seen_from_s: hidden before.
        handle: of its last delivery; only that one may hide or delete it on a FIFO queue.
    """

    message_id: str
    body: str
    seen_from_s: float
    group: str | None = None
    deduplication_id: str | None = None
    received: int = 0
    handle: str = ""


class SimQueue:
    """A queue: at least once, in any order; a FIFO one drops repeats for five minutes and keeps each group's order.

    Attributes:
        taken: every message that it ever took, as (seconds, body), also those that it dropped as repeats.
        dead: messages put away after `receives_max` deliveries.
        arrived: set by each message that is put in; who waits for one clears it.
    """

    def __init__(self, name: str, chance: random.Random, receives_max: int = 50, visibility_s: int = 60) -> None:
        self.name, self.visibility_s, self.receives_max = name, visibility_s, receives_max
        self.waiting: list[Waiting] = []
        self.taken: list[tuple[float, str]] = []
        self.dropped = 0
        self.dead: list[Waiting] = []
        self.arrived = threading.Event()
        self._random = chance
        self._seen: dict[str, tuple[float, str]] = {}
        self._number = 0

    @property
    def fifo(self) -> bool:
        """Whether it keeps order and drops repeats."""
        return self.name.endswith(".fifo")

    def put(self, body: str, now_s: float, delay_s: float, entry: dict[str, Any]) -> str:
        """Take a message; returns its id."""
        deduplication_id = entry.get("MessageDeduplicationId") if self.fifo else None
        if deduplication_id is not None:
            before = self._seen.get(deduplication_id)
            if before is not None and now_s - before[0] < DEDUPLICATED_S:
                self.dropped += 1
                return before[1]
        self._number += 1
        message_id = f"{self.name}-{self._number}"
        if deduplication_id is not None:
            self._seen[deduplication_id] = now_s, message_id
        self.taken.append((now_s, body))
        late_s = self._random.choice([0.0, 0.0, 0.2, 3.0]) if not self.fifo else 0.0
        group = entry.get("MessageGroupId") if self.fifo else None
        self.waiting.append(Waiting(message_id, body, now_s + delay_s + late_s, group, deduplication_id))
        self.arrived.set()
        return message_id

    def take(self, now_s: float, visibility_s: float) -> Waiting | None:
        """Deliver one message that can be seen; sometimes one that will be delivered to somebody else as well."""
        self._put_away(now_s)
        can = list(self._visible(now_s))
        if not can:
            return None
        chosen = can[0] if self.fifo else self._random.choice(can)
        chosen.received += 1
        chosen.handle = f"{chosen.message_id}#{chosen.received}"
        twice = not self.fifo and self._random.random() < 0.05
        chosen.seen_from_s = now_s if twice else now_s + visibility_s
        return chosen

    def _put_away(self, now_s: float) -> None:
        for one in list(self.waiting):
            if one.received >= self.receives_max and one.seen_from_s <= now_s:
                self.waiting.remove(one)
                self.dead.append(one)

    def _visible(self, now_s: float) -> Iterator[Waiting]:
        busy = set()
        for one in self.waiting:
            if one.group is not None and one.group in busy:
                continue
            if one.seen_from_s <= now_s:
                yield one
            if one.group is not None:
                busy.add(one.group)

    def next_s(self) -> float:
        """When the next message can be seen; infinity when there is none."""
        return min((one.seen_from_s for one in self.waiting), default=float("inf"))

    def hide(self, handle: str, until_s: float) -> bool:
        """Hide the message of a delivery; False when that is not in hand any more."""
        for one in self.waiting:
            if one.handle == handle:
                one.seen_from_s = until_s
                return True
        return False

    def remove(self, handle: str) -> bool:
        """Delete the message of a delivery, whoever has it by now; False when it is gone."""
        for one in list(self.waiting):
            if handle.split("#", maxsplit=1)[0] == one.message_id and (not self.fifo or one.handle == handle):
                self.waiting.remove(one)
                return True
        return False


class World:
    """Everything outside the ledger.

    Attributes:
        objects: what the bucket holds, by key.
        puts: how often an object was written, other than under a condition.
    """

    def __init__(self, chance: random.Random, now: Callable[[], float], moment: Callable[[], datetime]) -> None:
        self.random, self.now_s, self.moment = chance, now, moment
        self.table = Table("PromotionRewardBooking", "BookingDateUTC-BookingTimeUTC-index")
        self.bucket = "rewards"
        self.objects: dict[str, Stored] = {}
        self.puts = 0
        self.queues: dict[str, SimQueue] = {}

    def add_queue(self, name: str, receives_max: int = 50) -> SimQueue:
        """Make a queue."""
        self.queues[name] = SimQueue(name, self.random, receives_max)
        return self.queues[name]

    def put(self, key: str, body: bytes, metadata: dict[str, str]) -> Stored:
        """Store an object."""
        self.puts += 1
        self.objects[key] = Stored(body, dict(metadata), self.moment().replace(microsecond=0))
        return self.objects[key]

    def put_if(self, key: str, body: bytes, etag: str | None) -> Stored | None:
        """Store an object in the place of the version with this tag, or of none; None when another lies there."""
        there = self.objects.get(key)
        if (None if there is None else there.etag) != etag:
            return None
        self.objects[key] = Stored(body, {}, self.moment().replace(microsecond=0))
        return self.objects[key]
