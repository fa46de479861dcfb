"""The synthetic booking table: every record follows from its index, so that nobody has to remember any."""

from dataclasses import dataclass

WINDOW = "2026-09-17T15:00:00Z"
DATE = "2026-09-17"
INDEX = "BookingDateUTC-BookingTimeUTC-index"
KEY = "Id"
RECORDS_PER_GROUP = 2.5

_TICKS_PER_S = 10_000_000
_HOUR_TICKS = 3600 * _TICKS_PER_S
_MASK = (1 << 64) - 1
# Records fall into groups at random. With 2.232 on average over all groups, those that are not empty hold 2.5.
_RECORDS_PER_DRAWN_GROUP = 2.232
_TITLE = "Autumn reward for a returning member, booked at the counter and granted once the return period is over"

_ITEM = (
    '{"Id":{"S":"%s"},"BookingDateUTC":{"S":"' + DATE + '"},"BookingTimeUTC":{"S":"%s"},'
    '"RewardStatus":{"S":"WaitToReward"},"RewardType":{"S":"%s"},"ShopId":{"N":"%d"},"MemberId":{"N":"%d"},'
    '"PromotionEngineId":{"N":"%d"},"OrderTime":{"S":"%s"},"OrderCode":{"S":"TG%012d"},"RewardAmount":{"N":"%d.%02d"},'
    '"Title":{"S":"' + _TITLE + '"},"UpdatedAt":{"S":"2026-09-16T08:00:00.0000000Z"}}'
)


@dataclass(frozen=True)
class Shape:
    """What a table looks like; its name says it all, so that the stand-in needs no set-up.

    Attributes:
        one_group: all records share one group; else a group has 2.5 on average, scattered over the whole window.
    """

    records: int
    one_group: bool = False

    @property
    def table(self) -> str:
        return f"{'BenchOneGroup' if self.one_group else 'Bench'}-{self.records}"

    @property
    def groups(self) -> int:
        """How many groups the records are drawn for; some stay empty."""
        return 1 if self.one_group else max(1, round(self.records / _RECORDS_PER_DRAWN_GROUP))


def shape_of(table: str) -> Shape:
    """Read a shape back from a table's name."""
    kind, _, records = table.partition("-")
    return Shape(int(records), one_group=kind == "BenchOneGroup")


def _scrambled(index: int) -> int:
    """Return 64 bits that look random (SplitMix64)."""
    mixed = ((index + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def record_id(index: int) -> str:
    """Return a text like a UUID's; its last twelve digits are the index."""
    text = f"{_scrambled(index):016x}"
    return f"{text[:8]}-{text[8:12]}-4{text[12:15]}-8{text[13:16]}-{index:012x}"


def index_of(identity: str) -> int:
    """Read the index back from a record's id."""
    return int(identity[-12:], 16)


def _time(index: int, shape: Shape) -> str:
    seconds, ticks = divmod(index * _HOUR_TICKS // shape.records, _TICKS_PER_S)
    return f"{DATE}T15:{seconds // 60:02d}:{seconds % 60:02d}.{ticks:07d}Z"


def item_json(index: int, shape: Shape) -> str:
    """Return one record as DynamoDB JSON."""
    noise = _scrambled(index)
    group = noise % shape.groups
    order_time = f"{DATE}T14:{noise >> 20 & 31:02d}:{noise >> 30 & 31:02d}.{noise >> 40 & 0xFFFFF:07d}Z"
    return _ITEM % (
        record_id(index),
        _time(index, shape),
        "ECoupon" if group % 10 >= 7 else "Point",
        1000 + group % 97,
        2_000_000 + group,
        30 + group % 13,
        order_time,
        index,
        noise >> 50 & 0xFFF,
        noise % 100,
    )


def page_json(shape: Shape, first: int, limit: int) -> bytes:
    """Return the answer to a Query, from the record `first` on; a full page carries a key, as in AWS also the last."""
    end = min(first + limit, shape.records)
    items = ",".join([item_json(index, shape) for index in range(first, end)])
    count = max(0, end - first)
    key = ""
    if count == limit:
        last = f'"Id":{{"S":"{record_id(end - 1)}"}},"BookingTimeUTC":{{"S":"{_time(end - 1, shape)}"}}'
        key = f',"LastEvaluatedKey":{{{last},"BookingDateUTC":{{"S":"{DATE}"}}}}'
    return f'{{"Count":{count},"Items":[{items}],"ScannedCount":{count}{key}}}'.encode()


def table_json(shape: Shape) -> str:
    """Return the answer to DescribeTable."""
    types = ",".join(
        f'{{"AttributeName":"{name}","AttributeType":"S"}}' for name in (KEY, "BookingDateUTC", "BookingTimeUTC")
    )
    index_keys = (
        '[{"AttributeName":"BookingDateUTC","KeyType":"HASH"},{"AttributeName":"BookingTimeUTC","KeyType":"RANGE"}]'
    )
    projected = '"Projection":{"ProjectionType":"ALL"},"IndexStatus":"ACTIVE"'
    index = f'{{"IndexName":"{INDEX}","KeySchema":{index_keys},{projected}}}'
    return (
        f'{{"Table":{{"TableName":"{shape.table}","TableStatus":"ACTIVE","AttributeDefinitions":[{types}],'
        f'"KeySchema":[{{"AttributeName":"{KEY}","KeyType":"HASH"}}],"GlobalSecondaryIndexes":[{index}]}}}}'
    )
