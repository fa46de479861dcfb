"""The record source: one page of the index at a time, and consistent reads of the base table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from botocore.exceptions import ClientError

from dispatch.aws.errors import code_of, translated
from dispatch.aws.pool import at_once
from dispatch.aws.session import Session
from dispatch.items import Item, TableSchema, key_of, record_id, with_bytes
from ledger import clock
from ledger.canonical import canonical_json
from ledger.errors import CorruptError, InputError, MissingError, UnavailableError
from ledger.ids import jitter
from ledger.instants import DAY_S, Window, format_s
from ledger.settings import SourceSettings

# A call takes at most 100 keys: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_BatchGetItem.html
_KEYS_MAX = 100
_READERS = 4
_BATCH_ROUNDS_MAX = 8
_FIRST_DELAY_S = 0.05
# Below and above every text that a range key can be.
_LOWEST, _HIGHEST = "\x01", "\U0010ffff"


class Patience(NamedTuple):
    """How often a call is tried in all, and how long each try may wait for its answer."""

    tries: int
    read: timedelta


_OF_A_RUN = Patience(8, timedelta(seconds=20))


class SourcePage(msgspec.Struct, frozen=True):
    """One answer to one Query.

    Attributes:
        cursor_json: the key that the read started from; None at the beginning of a date.
        next_json: the key it ended with; None when the date is read to its end.
        read_at: when it was asked for: what changed later may be missing.
    """

    items: list[Item]
    cursor_json: str | None
    next_json: str | None
    read_at: datetime


@dataclass(frozen=True)
class QueryRange:
    """One date's share of a window, as bounds on the text of the range key, both inclusive."""

    date: str
    first: str
    last: str


def query_ranges(window: Window) -> list[QueryRange]:
    """Return bounds that enclose every spelling of every instant of a window, both ends included.

    As text, `15:00:00+00:00` < `15:00:00.0Z` < `15:00:00Z`. So the bare second is a lower bound of all spellings of
    its instants, and the second with `Z` an upper bound of all spellings of the instant itself; what else the last
    second lets in is sorted out as an instant. A window that ends at midnight ends on the next date; it takes whatever
    is left above the one date's last hour and below the other's first, so that no text falls between two windows.
    """
    start, end = format_s(window.start_s), format_s(window.end_s)
    if start[:10] == end[:10]:
        return [QueryRange(start[:10], start[:-1], end)]
    assert window.end_s % DAY_S == 0, "only midnight divides a window"
    return [QueryRange(start[:10], start[:-1], _HIGHEST), QueryRange(end[:10], _LOWEST, end)]


def whole_day(date: str) -> QueryRange:
    """Return bounds that enclose whatever the index holds of a date (`YYYY-MM-DD`)."""
    return QueryRange(date, _LOWEST, _HIGHEST)


def for_sdk(key: Item) -> Item:
    """Return a key as the SDK wants to be given it."""
    return {name: with_bytes(value) for name, value in key.items()}


class DynamoSource:
    """Reads the booking table. Safe to share between threads.

    Args:
        patience: how often a call is tried in all, and how long one try waits for its answer; for a person who waits,
            less than for a run.

    Raises:
        InputError: from the constructor, when table, index or projection are not what the settings need.
        UnavailableError: from any call, when DynamoDB does not answer after bounded retries.
    """

    def __init__(
        self, session: Session, settings: SourceSettings, *, verify_due: bool, patience: Patience = _OF_A_RUN
    ) -> None:
        self._client = session.client("dynamodb", tries=patience.tries, read=patience.read)
        self._settings = settings
        self.schema = read_schema(find_table(self._client, settings.table), settings, verify_due=verify_due)

    def pages(self, window: Window, page_size: int) -> Iterator[SourcePage]:
        """Yield the pages of a window in the order of booking time; the next is read only when it is asked for.

        An empty page with a key goes on; no key, or an empty one, ends a date.

        Raises:
            CorruptError: when DynamoDB answers a key for the second time, which would go on forever.
        """
        seen: set[bytes] = set()
        for part in query_ranges(window):
            cursor: dict[str, Any] | None = None
            while True:
                page, cursor = self._query(part, cursor, page_size)
                if page.next_json is not None:
                    key = page.next_json.encode()
                    if key in seen:
                        raise CorruptError(
                            f"window {window}: DynamoDB answered a page key that it had answered before, so reading "
                            "would never end; nothing more was sent. Run again; if it stays, look at the index",
                        )
                    seen.add(key)
                yield page
                del page  # let go before the next is read: two pages at a time are twice the memory
                if cursor is None:
                    break

    def _query(
        self, part: QueryRange, cursor: dict[str, Any] | None, page_size: int
    ) -> tuple[SourcePage, dict[str, Any] | None]:
        request = query_request(self._settings, part, page_size)
        if cursor is not None:
            request["ExclusiveStartKey"] = for_sdk(cursor)
        read_at = clock.utc_now()
        with translated(f"reading index {self._settings.index} of {self._settings.table}"):
            answer = self._client.query(**request)
        following = answer["LastEvaluatedKey"] or None
        return SourcePage(answer["Items"], _cursor_json(cursor), _cursor_json(following), read_at), following

    def read_again(self, record_ids: Sequence[str]) -> dict[str, Item]:
        """Read records from the base table, consistently; those that are gone are missing from the answer."""
        distinct = list(dict.fromkeys(record_ids))
        chunks = [distinct[at : at + _KEYS_MAX] for at in range(0, len(distinct), _KEYS_MAX)]
        found: dict[str, Item] = {}
        for part in at_once(self._read_chunk, chunks, _READERS):
            found |= part
        return found

    def _read_chunk(self, record_ids: list[str]) -> dict[str, Item]:
        table = self._settings.table
        keys = [for_sdk(key_of(identity, self.schema)) for identity in record_ids]
        found: dict[str, Item] = {}
        delay_s = _FIRST_DELAY_S
        for _ in range(_BATCH_ROUNDS_MAX):
            with translated(f"reading {table} again"):
                answer = self._client.batch_get_item(RequestItems={table: {"Keys": keys, "ConsistentRead": True}})
            for item in answer["Responses"].get(table, []):
                found[record_id(item, self.schema)] = item
            keys = [for_sdk(key) for key in (answer["UnprocessedKeys"] or {}).get(table, {}).get("Keys", [])]
            if not keys:
                return found
            clock.wait_s(jitter(delay_s))
            delay_s *= 2
        raise UnavailableError(
            f"reading {table} again: DynamoDB left keys unread {_BATCH_ROUNDS_MAX} times; run again later"
        )


def find_table(client: Any, table: str) -> dict[str, Any]:
    """Return what DescribeTable says of a table.

    Args:
        client: a botocore client for DynamoDB.

    Raises:
        InputError: when the table does not exist, or may not be described.
        UnavailableError: when DynamoDB does not answer.
    """
    with translated(f"DynamoDB table {table}"):
        try:
            found: dict[str, Any] = client.describe_table(TableName=table)["Table"]
        except ClientError as error:
            if code_of(error) == "ResourceNotFoundException":
                region = client.meta.region_name
                raise MissingError(
                    f"DynamoDB table {table!r} does not exist in {region}; create it, or mend source.table"
                ) from error
            raise
    return found


def query_request(settings: SourceSettings, part: QueryRange, limit: int) -> dict[str, Any]:
    """Return the parameters of a Query of the index, from its beginning."""
    return {
        "TableName": settings.table,
        "IndexName": settings.index,
        "KeyConditionExpression": "#date = :date AND #time BETWEEN :first AND :last",
        "ExpressionAttributeNames": {"#date": settings.date_attribute, "#time": settings.time_attribute},
        "ExpressionAttributeValues": {
            ":date": {"S": part.date},
            ":first": {"S": part.first},
            ":last": {"S": part.last},
        },
        "Limit": limit,
    }


def _cursor_json(cursor: dict[str, Any] | None) -> str | None:
    return None if cursor is None else canonical_json(cursor).decode()


def read_schema(table: dict[str, Any], settings: SourceSettings, *, verify_due: bool) -> TableSchema:
    """Check what DescribeTable says against what the settings need. Pure.

    Raises:
        InputError: naming the setting that does not fit, and how to mend it.
    """
    key_types = read_key(table, settings)
    index = find_index(table, settings)
    projects_all = projection_of(index) == "ALL"
    if not projects_all and not verify_due:
        raise InputError(
            f"dispatch.verify_due is off, but index {settings.index!r} does not project all attributes; "
            "switch verify_due on, or project ALL",
        )
    return TableSchema(key_types, projects_all)


def read_key(table: dict[str, Any], settings: SourceSettings) -> dict[str, str]:
    """Return the key attributes of a table that can be used now, hash key first, with their types.

    Raises:
        InputError: when it cannot be used now.
    """
    if table.get("TableStatus") not in {"ACTIVE", "UPDATING", None}:
        raise InputError(f"DynamoDB table {settings.table!r} is {table['TableStatus']}; wait until it is ACTIVE")
    types = _types(table)
    keys = sorted(table["KeySchema"], key=lambda one: str(one["KeyType"]))  # HASH before RANGE
    return {one["AttributeName"]: types[one["AttributeName"]] for one in keys}


def projection_of(index: dict[str, Any]) -> str:
    """Return which attributes an index carries: `ALL`, `KEYS_ONLY`, `INCLUDE`, or nothing when it does not say."""
    return str(index.get("Projection", {}).get("ProjectionType", ""))


def _types(table: dict[str, Any]) -> dict[str, str]:
    return {one["AttributeName"]: one["AttributeType"] for one in table.get("AttributeDefinitions", [])}


def find_index(table: dict[str, Any], settings: SourceSettings) -> dict[str, Any]:
    """Return what DescribeTable says of the index.

    Raises:
        InputError: when there is none of that name, it is keyed otherwise, or does not show every record yet.
    """
    index, types = _index(table, settings), _types(table)
    wanted = {settings.date_attribute: "HASH", settings.time_attribute: "RANGE"}
    if {one["AttributeName"]: one["KeyType"] for one in index["KeySchema"]} != wanted:
        raise InputError(
            f"index {settings.index!r} of {settings.table!r} is not keyed by {settings.date_attribute} (hash) and "
            f"{settings.time_attribute} (range); mend source.index, source.date_attribute or source.time_attribute",
        )
    for name in wanted:
        if types.get(name) != "S":
            raise InputError(f"{name} of {settings.table!r} is not a string; the index keys must be text")
    return index


def _index(table: dict[str, Any], settings: SourceSettings) -> dict[str, Any]:
    indexes: list[dict[str, Any]] = [
        *table.get("GlobalSecondaryIndexes", []),
        *table.get("LocalSecondaryIndexes", []),
    ]
    names = [one["IndexName"] for one in indexes]
    if settings.index not in names:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise InputError(
            f"DynamoDB table {settings.table!r} has no index {settings.index!r} ({has}); mend source.index"
        )
    index = indexes[names.index(settings.index)]
    if index.get("Backfilling") or index.get("IndexStatus") not in {"ACTIVE", "UPDATING", None}:
        state = "backfilling" if index.get("Backfilling") else index.get("IndexStatus")
        raise InputError(
            f"index {settings.index!r} is still {state}: it does not show every record yet; wait until it is ACTIVE"
        )
    return index
