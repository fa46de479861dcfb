"""What a good developer would write in a day with boto3 and SQLModel; the benchmark's yardstick.

It has what the task asks for: every page is read, a uniqueness constraint keeps a record from being sent twice, a group
becomes one object and one message, and the ledger knows what was sent. It has none of what the product adds (leases,
recovery, proof of sends), and it makes each call when it needs it, one after the other. Two forms: `window` reads the
whole window and then groups it, `paged` groups each page by itself.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import boto3
from boto3.dynamodb.conditions import Key
from sqlalchemy.exc import IntegrityError
from sqlmodel import Field, Session, SQLModel, UniqueConstraint, create_engine

from bench.probe import Usage
from bench.records import DATE, INDEX

Record = dict[str, Any]
GROUP_BY = ("ShopId", "MemberId", "PromotionEngineId", "RewardType")


class PlainEntry(SQLModel, table=True):
    """One group that was sent."""

    id: int | None = Field(default=None, primary_key=True)
    group: str
    object_key: str
    message_id: str = ""


class PlainClaim(SQLModel, table=True):
    """One record that was sent; the constraint is what keeps it from being sent twice."""

    __table_args__ = (UniqueConstraint("record_id", "booking_time"),)
    id: int | None = Field(default=None, primary_key=True)
    record_id: str
    booking_time: str
    entry_id: int | None = Field(foreign_key="plainentry.id")


class Plain:
    """The dispatcher."""

    def __init__(self, database_url: str, table: str, endpoint_url: str) -> None:
        options: dict[str, Any] = {"endpoint_url": endpoint_url, "region_name": "us-east-1"}
        self._table = boto3.resource("dynamodb", **options).Table(table)
        self._s3 = boto3.client("s3", **options)
        self._sqs = boto3.client("sqs", **options)
        self._queues = {
            route: self._sqs.get_queue_url(QueueName=name)["QueueUrl"]
            for route, name in (("Point", "reward-point"), ("ECoupon", "reward-ecoupon"))
        }
        self._engine = create_engine(database_url)
        SQLModel.metadata.create_all(self._engine, tables=[PlainEntry.__table__, PlainClaim.__table__])  # type: ignore[attr-defined]

    def pages(self) -> Iterator[list[Record]]:
        condition = Key("BookingDateUTC").eq(DATE) & Key("BookingTimeUTC").between(
            f"{DATE}T15:00:00", f"{DATE}T16:00:00Z"
        )
        options: dict[str, Any] = {"IndexName": INDEX, "KeyConditionExpression": condition, "Limit": 1000}
        while True:
            answer = self._table.query(**options)
            yield answer["Items"]
            if not answer.get("LastEvaluatedKey"):
                return
            options["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def dispatch(self, records: Iterable[Record]) -> int:
        """Group and send; returns how many groups were sent."""
        groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
        for record in records:
            if record["RewardStatus"] == "WaitToReward":
                groups[tuple(record[name] for name in GROUP_BY)].append(record)
        with Session(self._engine) as session:
            return sum(self._send(session, group, members) for group, members in groups.items())

    def _send(self, session: Session, group: tuple[Any, ...], members: list[Record]) -> bool:
        members.sort(key=lambda record: record["OrderTime"])
        name = "-".join(map(str, group))
        entry = PlainEntry(group=name, object_key=f"rewards/{DATE}/15/{name}/{members[0]['Id']}.json")
        session.add(entry)
        try:
            session.flush()
            session.add_all(
                PlainClaim(record_id=one["Id"], booking_time=one["BookingTimeUTC"], entry_id=entry.id)
                for one in members
            )
            session.flush()
        except IntegrityError:
            session.rollback()
            return False
        body = json.dumps(members, default=str).encode()
        self._s3.put_object(Bucket="bench", Key=entry.object_key, Body=body, ContentType="application/json")
        message = json.dumps({"group": name, "object": entry.object_key, "records": len(members)})
        entry.message_id = self._sqs.send_message(QueueUrl=self._queues[group[-1]], MessageBody=message)["MessageId"]
        session.commit()
        return True


def measure(spec: Mapping[str, Any]) -> dict[str, float]:
    """Dispatch one window."""
    usage = Usage()
    plain = Plain(spec["database_url"], spec["table"], spec["endpoint_url"])
    with usage.timed():
        if spec["variant"] == "window":
            groups = plain.dispatch(record for page in plain.pages() for record in page)
        else:
            groups = sum(plain.dispatch(page) for page in plain.pages())
    return {**usage.figures(), "groups": groups, "records": spec["records"]}
