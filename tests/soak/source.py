"""The bookings of a round: made up, changed while the product works, and remembered as they were at every moment.

What a booking means is read here a second time, by code of the soak's own.
"""

import json
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.aws_servers import Item, World, booking

Occurrence = tuple[str, int]
"""Record id, and booking time in nanoseconds since 1970."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GROUP = ("ShopId", "MemberId", "PromotionEngineId")
ROUTES = {"Point": "RewardPoint", "ECoupon": "RewardECoupon"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)")
_SECOND = 10**9
_HOUR = 3600 * _SECOND
_NAMES = ("Ann", "Bob\u0000", 'quo"ted\\', "Zoë \U0001f600", "\u2028 line", "<&>")


def instant_ns(text: object) -> int | None:
    """Read a booking time; None when it is none."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    try:
        whole = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return (whole - EPOCH) // timedelta(seconds=1) * _SECOND + int((found[2] or "").ljust(9, "0"))


def spell(booking_ns: int, dice: random.Random) -> str:
    """Write an instant in one of its many spellings."""
    seconds, fraction = divmod(booking_ns, _SECOND)
    digits = f"{fraction:09d}".rstrip("0")
    digits = digits.ljust(dice.choice([n for n in (0, 0, 3, 7, 9) if n >= len(digits)] or [len(digits)]), "0")
    text = (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return text + (f".{digits}" if digits else "") + dice.choice(["Z", "Z", "+00:00"])


def plain(item: Item) -> dict[str, Any]:
    """Give an item as plain values, its numbers exact."""
    return {name: _plain(value) for name, value in item.items()}


def _plain(value: dict[str, Any]) -> Any:
    ((kind, inner),) = value.items()
    return {"N": lambda: Decimal(inner), "NULL": lambda: None}.get(kind, lambda: inner)()


def occurrence_of(record: Mapping[str, Any]) -> Occurrence:
    """Give which occurrence a sent record is."""
    booking_ns = instant_ns(record["BookingTimeUTC"])
    assert booking_ns is not None, f"sent, with a booking time that nobody can read: {record}"
    return record["Id"], booking_ns


@dataclass
class Version:
    """How a record was from one moment to another; `item` is None when it was gone."""

    item: Item | None
    since: datetime
    until: datetime | None = None

    @property
    def is_due(self) -> bool:
        return self.item is not None and self.item.get("RewardStatus") == {"S": "WaitToReward"}

    @property
    def occurrence(self) -> Occurrence | None:
        """Which occurrence it is; None when its time can't be read."""
        if self.item is None:
            return None
        booking_ns = instant_ns(self.item["BookingTimeUTC"].get("S"))
        return None if booking_ns is None else (self.item["Id"]["S"], booking_ns)

    @property
    def is_usable(self) -> bool:
        if self.item is None or self.occurrence is None:
            return False
        wanted = [self.item.get(name) for name in (*GROUP, "RewardType")]
        whole = all(value is not None and "NULL" not in value and value != {"S": ""} for value in wanted)
        return whole and self.item["RewardType"].get("S") in ROUTES


@dataclass
class Source:
    """The table of a round; only this puts anything into it.

    Attributes:
        hours: the starts of the round's windows, side by side, oldest first.
        histories: of each record, all it has ever been, oldest first.
    """

    world: World
    hours: Sequence[datetime]
    dice: random.Random
    histories: dict[str, list[Version]] = field(default_factory=dict)
    changes: int = 0

    @property
    def start_ns(self) -> int:
        return (self.hours[0] - EPOCH) // timedelta(seconds=1) * _SECOND

    @property
    def end_ns(self) -> int:
        return self.start_ns + len(self.hours) * _HOUR

    def fill(self, groups: int) -> None:
        """Put groups of 1 to 8 records into every window."""
        for item in [item for hour in range(len(self.hours)) for _ in range(groups) for item in self._group(hour)]:
            self._put(item)

    def change(self) -> None:
        """Do one thing to the bookings, as the world does."""
        kinds = {
            self._insert: 3,
            self._rebook: 5,
            self._edit: 3,
            self._cancel: 3,
            self._restore: 3,
            self._regroup: 1,
            self._break: 1,
            self._mend: 2,
            self._remove: 1,
        }
        (kind,) = self.dice.choices(list(kinds), list(kinds.values()))
        kind()
        self.changes += 1

    def final(self) -> Iterator[Version]:
        """Give what each record has become."""
        return (versions[-1] for versions in self.histories.values())

    def concerns(self, occurrence: Occurrence) -> bool:
        """Say whether an occurrence belongs to the round's windows."""
        return self.start_ns <= occurrence[1] <= self.end_ns

    def dump(self) -> str:
        """Write down everything that has ever been, one line a version."""
        lines = [
            {"since": str(one.since), "until": str(one.until), "item": one.item}
            for versions in self.histories.values()
            for one in versions
        ]
        return "\n".join(map(json.dumps, lines)) + "\n"

    # Making

    def _group(self, hour: int) -> list[Item]:
        dice, member = self.dice, self.dice.randrange(1, 60)
        route = dice.choice(["Point", "ECoupon"])
        return [self._record(hour, member, route) for _ in range(dice.choice([1, 1, 2, 3, 4, 8]))]

    def _record(self, hour: int, member: int, route: str) -> Item:
        dice = self.dice
        number = len(self.histories) + len(self._made)
        name = str(dice.choice([f"R{number}", f"r{number}é", f"{dice.getrandbits(96):024x}-{number}"]))
        if dice.random() < 0.3:
            name = f"{dice.getrandbits(32):08x}-0000-4000-8000-{number:012x}"
        self._made.append(name)
        item = booking(
            name,
            spell(self._moment(hour), dice),
            shop=dice.choice([7, 7, 7, 8]),
            member=member,
            promotion=dice.choice([1, 1, 2]),
            type=route,
            status="Rewarded" if dice.random() < 0.1 else "WaitToReward",
            order=f"2026-09-{dice.randrange(1, 29):02d}T10:00:00Z",
            Amount={"N": f"{dice.randrange(1, 10**6) / 100:.2f}"},
            Name=dice.choice(_NAMES),
        )
        return self._broken(item) if dice.random() < 0.05 else item

    _made: list[str] = field(default_factory=list)

    def _moment(self, hour: int) -> int:
        """Choose an instant of a window, rather often at its edges."""
        start = self.start_ns + hour * _HOUR
        edges = [start, start + _HOUR, start + 1, start + _HOUR - 1, start + _HOUR - 100]
        if self.dice.random() < 0.15:
            return self.dice.choice(edges)
        step = self.dice.choice([1, 100, 10**6, _SECOND])
        return start + self.dice.randrange(0, _HOUR // step) * step

    def _broken(self, item: Item) -> Item:
        """Make a record unusable in one of several ways."""
        hour = str(item["BookingTimeUTC"]["S"])[:13]
        changes: list[dict[str, dict[str, Any] | None]] = [
            {"MemberId": None},
            {"ShopId": {"NULL": True}},
            {"PromotionEngineId": {"S": ""}},
            {"RewardType": {"S": "Cash"}},
            {"RewardType": None},
            {"BookingTimeUTC": {"S": f"{hour}:30:00"}},
            {"BookingTimeUTC": {"S": f"{hour}:30:61Z"}},
        ]
        broken = item | self.dice.choice(changes)
        return {name: value for name, value in broken.items() if value is not None}

    # Changing

    def _put(self, item: Item) -> None:
        since = datetime.now(UTC)
        self.world.put(item)
        self._note(item["Id"]["S"], item, since)

    def _note(self, name: str, item: Item | None, since: datetime) -> None:
        versions = self.histories.setdefault(name, [])
        if versions:
            versions[-1].until = datetime.now(UTC)
        versions.append(Version(item, since))

    def _some(self) -> Item | None:
        return self.dice.choice(list(self.histories.values()))[-1].item

    def _insert(self) -> None:
        for item in self._group(self.dice.randrange(len(self.hours)))[:3]:
            self._put(item)

    def _rebook(self) -> None:
        """Move a record within the windows, or now and then to where nobody looks yet."""
        if item := self._some():
            booking_ns = self._moment(self.dice.randrange(len(self.hours)))
            if self.dice.random() < 0.15:
                booking_ns = self.end_ns + 48 * _HOUR
            time = spell(booking_ns, self.dice)
            self._put(item | {"BookingTimeUTC": {"S": time}, "BookingDateUTC": {"S": time[:10]}})

    def _edit(self) -> None:
        if item := self._some():
            self._put(item | {"Amount": {"N": str(self.dice.randrange(1, 10**6))}})

    def _cancel(self) -> None:
        if item := self._some():
            self._put(item | {"RewardStatus": {"S": "Cancelled"}})

    def _restore(self) -> None:
        if item := self._some():
            self._put(item | {"RewardStatus": {"S": "WaitToReward"}})

    def _regroup(self) -> None:
        if item := self._some():
            self._put(item | {"MemberId": {"N": str(self.dice.randrange(1, 60))}})

    def _break(self) -> None:
        if item := self._some():
            self._put(self._broken(item))

    def _mend(self) -> None:
        bad = [versions[-1].item for versions in self.histories.values() if not versions[-1].is_usable]
        if item := self.dice.choice(bad) if bad else None:
            time = spell(self._moment(self.dice.randrange(len(self.hours))), self.dice)
            whole = booking(item["Id"]["S"], time, member=self.dice.randrange(1, 60))
            self._put(whole | {"Amount": {"N": "1"}})

    def _remove(self) -> None:
        if item := self._some():
            since = datetime.now(UTC)
            self.world.delete(item["Id"]["S"])
            self._note(item["Id"]["S"], None, since)


def keep_changing(source: Source, every_s: float, over: threading.Event) -> None:
    """Change the bookings until it is over."""
    while not over.wait(source.dice.expovariate(1 / every_s)):
        source.change()
