"""One record as the base table has it now: asked for by its id, judged as a dispatch would judge it.

It needs the table and its index, not the bucket and the queues; so sizes are judged by the most that any queue takes.
"""

import threading
from datetime import timedelta
from typing import Literal

import msgspec

from dispatch.aws.queues import MESSAGE_BYTES_MAX
from dispatch.aws.session import Session
from dispatch.aws.source import DynamoSource, Patience, query_ranges
from dispatch.grouping import group_of
from dispatch.items import Item, TableSchema, key_of, plain, record_id, with_bytes
from dispatch.judging import Left, Verdict, judge, rules_of
from ledger.canonical import utf8
from ledger.errors import DispatchLedgerError, InputError
from ledger.facts import BadRecord, Record
from ledger.instants import HOUR_S, NS_PER_S, Window, parse_booking_ns
from ledger.settings import Settings, SourceSettings

SourceVerdict = Literal["due", "not_due", "set_aside", "gone", "unknown"]

_OF_A_PERSON = Patience(2, timedelta(seconds=5))
# A date has so many windows: its own hours, and the one before that ends with its first instant.
_WINDOWS_OF_A_DATE = 25
# https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html
_HASH_KEY_BYTES_MAX, _RANGE_KEY_BYTES_MAX = 2048, 1024
_SHOWN_CHARS_MAX = 80
_KINDS = {"S": "text", "N": "a number", "B": "binary, as base64 text"}


class Sighting(msgspec.Struct, frozen=True):
    """What the base table says of a record now.

    Attributes:
        record_id: the id as the ledger knows it: canonical, where it is the JSON of several key attributes.
        verdict: what a dispatch would make of it; `unknown` when the table could not be asked.
        why: the reason of the verdict, as part of a sentence; None where there is nothing to say.
        error: why it could not be asked, on one line.
        booking_date, booking_time: the index keys as the source spells them.
        booking_ns: the booking time in nanoseconds since 1970; None when it cannot be read.
        status: the status attribute as text.
        windows: those that read the record where it stands now, oldest first: two for one exactly on the hour, none for
            one that no window reads.
        group_digest: of the group it would be sent in; None unless it is due.
    """

    record_id: str
    verdict: SourceVerdict
    why: str | None = None
    error: str | None = None
    booking_date: str | None = None
    booking_time: str | None = None
    booking_ns: int | None = None
    status: str | None = None
    windows: tuple[Window, ...] = ()
    group_digest: bytes | None = None

    @property
    def found(self) -> bool | None:
        """Whether the table has the record; None when it could not be asked."""
        return {"unknown": None, "gone": False}.get(self.verdict, True)


class Lookup:
    """Asks the base table for records; any number of threads may, since the client is made once and shared."""

    def __init__(self, settings: Settings, endpoint_url: str | None) -> None:
        self._settings = settings
        self._endpoint_url = endpoint_url
        self._connecting = threading.Lock()
        self._source: DynamoSource | None = None

    def ask(self, identity: str) -> Sighting:
        """Ask for a record, consistently; waits ten seconds or so at the most. An error is in the answer."""
        try:
            return self._ask(identity)
        except DispatchLedgerError as error:
            return not_asked(identity, error)

    def _ask(self, identity: str) -> Sighting:
        with self._connecting:
            source = self._source = self._source or _connect(self._settings, self._endpoint_url)
        table = self._settings.source.table
        canonical = record_id(_key(identity, source.schema, table), source.schema)
        item = source.read_again([canonical]).get(canonical)
        if item is None:
            return Sighting(canonical, "gone", f"the table {table} has no record with this key")
        return sighting_of(item, source.schema, self._settings)


def not_asked(identity: str, error: DispatchLedgerError) -> Sighting:
    """Return what is known when the table could not be asked: nothing but why."""
    return Sighting(identity, "unknown", error=str(error))


def _connect(settings: Settings, endpoint_url: str | None) -> DynamoSource:
    session = Session(endpoint_url, settings.aws.region, embedded=settings.aws.endpoint_url == "embedded")
    return DynamoSource(session, settings.source, verify_due=True, patience=_OF_A_PERSON)


def _key(identity: str, schema: TableSchema, table: str) -> Item:
    """Return the key that an id names.

    Raises:
        InputError: saying what a key of this table looks like.
    """
    try:
        key = key_of(identity, schema)
        wrong = _wrong_size(key)
    except ValueError as reason:
        wrong = str(reason)
    if wrong:
        shown = f"{identity[:_SHOWN_CHARS_MAX]!r}{'…' if len(identity) > _SHOWN_CHARS_MAX else ''}"
        raise InputError(f"{shown} can be no key of table {table} ({wrong}); its key is {_spelled(schema)}")
    return key


def _wrong_size(key: Item) -> str | None:
    for limit, value in zip((_HASH_KEY_BYTES_MAX, _RANGE_KEY_BYTES_MAX), key.values(), strict=False):
        ((kind, content),) = with_bytes(value).items()
        if not 0 < len(content if kind == "B" else utf8(content)) <= limit:
            return f"a key has 1 to {_HASH_KEY_BYTES_MAX} bytes, its second attribute 1 to {_RANGE_KEY_BYTES_MAX}"
    return None


def _spelled(schema: TableSchema) -> str:
    if schema.text_key is not None:
        return f"the text attribute {schema.text_key}, given as it is"
    named = ", ".join(f"{name} ({_KINDS[kind]})" for name, kind in schema.key_types.items())
    return f"a JSON object of {named}"


def sighting_of(item: Item, schema: TableSchema, settings: Settings) -> Sighting:
    """Judge an item of the base table as a dispatch of its window would. Pure."""
    source = settings.source
    date, time = _text(item, source.date_attribute), _text(item, source.time_attribute)
    booking_ns = _booking_ns(time)
    hour = Window((booking_ns or 0) // NS_PER_S // HOUR_S * HOUR_S)
    rules = rules_of(source, schema, hour, dict.fromkeys(settings.routes, MESSAGE_BYTES_MAX))
    verdict = judge(item, rules)
    seen = Sighting(
        record_id=record_id(item, schema),
        verdict=_named(verdict),
        why=_why(verdict, item, source),
        booking_date=date,
        booking_time=time,
        booking_ns=booking_ns,
        status=_text(item, source.status_attribute),
        windows=windows_that_read(date, time),
    )
    if isinstance(verdict, Record):
        return msgspec.structs.replace(seen, group_digest=group_of([verdict], rules).digest)
    return seen


def _named(verdict: Verdict) -> SourceVerdict:
    assert verdict is not Left.OUTSIDE, "it was judged by the window of its own hour"
    if isinstance(verdict, BadRecord):
        return "set_aside"
    return "not_due" if verdict is Left.NOT_DUE else "due"


def _why(verdict: Verdict, item: Item, source: SourceSettings) -> str | None:
    if isinstance(verdict, BadRecord):
        return f"{verdict.cause}: {verdict.detail}"
    if verdict is Left.NOT_DUE:
        status = item.get(source.status_attribute)
        has = f"its {source.status_attribute} is {_shown(status)}" if status else f"it has no {source.status_attribute}"
        return f"{has}, and only {source.due_status!r} is due"
    return None


def _shown(value: dict[str, object]) -> str:
    text = repr(plain(value) if "S" in value else next(iter(value.values())))
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def _text(item: Item, name: str) -> str | None:
    value = item.get(name, {})
    text = value.get("S", value.get("N"))
    return text if isinstance(text, str) else None


def _booking_ns(time: str | None) -> int | None:
    try:
        return None if time is None else parse_booking_ns(time)
    except ValueError:
        return None


def windows_that_read(date: str | None, time: str | None) -> tuple[Window, ...]:
    """Return the windows whose queries return a record with these index keys, and whose it is as an instant. Pure.

    Two for a record exactly on the hour. None when a key is missing, or when the date is not that of the time: then the
    index shows the record where no window looks for it.
    """
    if date is None or time is None:
        return ()
    midnight_ns, booking_ns = _booking_ns(f"{date}T00:00:00Z"), _booking_ns(time)
    if midnight_ns is None:
        return ()
    first_s = midnight_ns // NS_PER_S - HOUR_S
    windows = [Window(first_s + number * HOUR_S) for number in range(_WINDOWS_OF_A_DATE)]
    return tuple(one for one in windows if _reads(one, date, time) and _holds(one, booking_ns))


def _reads(window: Window, date: str, time: str) -> bool:
    text = utf8(time)
    return any(part.date == date and utf8(part.first) <= text <= utf8(part.last) for part in query_ranges(window))


def _holds(window: Window, booking_ns: int | None) -> bool:
    return booking_ns is None or window.start_ns <= booking_ns <= window.end_ns
