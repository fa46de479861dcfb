"""Each fault of the wire, shown by boto3 against an emulator; and the emulators' world itself."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from tests.aws_servers import INDEX, World, booking, ministack_server, moto_server, reset
from tests.wire import (
    FaultProxy,
    Request,
    Rule,
    answer,
    anything,
    callback,
    drop_after_effect,
    drop_before,
    hang,
    on,
    query_server,
    rewrite,
    rewrite_json,
    status,
    throttle,
)

ONCE = Config(retries={"total_max_attempts": 1}, read_timeout=10, s3={"addressing_style": "path"})
TIME = "2026-09-17T15:30:00Z"


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with ministack_server() as url:
        yield url


@pytest.fixture(scope="module")
def world(emulator: str) -> World:
    return World(emulator)


@pytest.fixture
def proxy(emulator: str) -> Iterator[FaultProxy]:
    with FaultProxy(emulator) as wire:
        yield wire


def connect(service: str, proxy: FaultProxy, config: Config = ONCE) -> Any:
    return boto3.client(  # type: ignore[call-overload]
        service,
        endpoint_url=proxy.url,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="y",
        config=config,
    )


def send(proxy: FaultProxy, world: World, body: str = "{}", config: Config = ONCE) -> Any:
    return connect("sqs", proxy, config).send_message(QueueUrl=world.queue_url("reward-point"), MessageBody=body)


def query(client: Any, world: World, date: str = "2026-09-17", **more: Any) -> Any:
    return client.query(
        TableName=world.table,
        IndexName=INDEX,
        KeyConditionExpression="BookingDateUTC = :d",
        ExpressionAttributeValues={":d": {"S": date}},
        **more,
    )


def test_passes_everything_through_unchanged(proxy: FaultProxy, world: World) -> None:
    world.put(booking("R0", TIME))
    s3 = connect("s3", proxy)
    s3.put_object(Bucket=world.bucket, Key="a/ä b+c", Body=b"hello" * 1000, Metadata={"sha256": "x"})
    assert s3.get_object(Bucket=world.bucket, Key="a/ä b+c")["Body"].read() == b"hello" * 1000
    assert s3.head_object(Bucket=world.bucket, Key="a/ä b+c")["ContentLength"] == 5000
    assert world.object_metadata("a/ä b+c") == {"sha256": "x"}
    s3.delete_object(Bucket=world.bucket, Key="a/ä b+c")
    assert world.objects() == {}
    assert query(connect("dynamodb", proxy), world)["Items"] == [booking("R0", TIME)]
    send(proxy, world, '{"n": 1}')
    assert world.messages("reward-point") == [{"n": 1}]
    assert [name for name, _ in proxy.requests] == [
        "PUT object",
        "GET object",
        "HEAD object",
        "DELETE object",
        "DynamoDB_20120810.Query",
        "AmazonSQS.SendMessage",
    ]
    assert json.loads(proxy.requests[-1][1])["MessageBody"] == '{"n": 1}'


def test_takes_chunked_bodies(proxy: FaultProxy, world: World) -> None:
    pieces = iter([b"one", b"two", b""])

    class Stream:
        def read(self, size: int = -1) -> bytes:
            return next(pieces, b"")

    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"))
    path = f"/{world.bucket}/chunked"
    headers = {
        "Expect": "100-continue",
        "Authorization": "AWS4-HMAC-SHA256 Credential=x/20260917/us-east-1/s3/aws4_request",
    }
    connection.request("PUT", path, body=Stream(), headers=headers, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert world.objects() == {"chunked": b"onetwo"}
    world.s3.delete_object(Bucket=world.bucket, Key="chunked")


def test_multipart_uploads_have_names_of_their_own(proxy: FaultProxy, world: World) -> None:
    s3 = connect("s3", proxy)
    upload = s3.create_multipart_upload(Bucket=world.bucket, Key="big")["UploadId"]
    s3.upload_part(Bucket=world.bucket, Key="big", UploadId=upload, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(Bucket=world.bucket, Key="big", UploadId=upload)
    s3.list_objects_v2(Bucket=world.bucket, Prefix="a")
    names = [name for name, _ in proxy.requests]
    assert names == ["POST object?uploads", "PUT object?uploadId", "DELETE object?uploadId", "GET bucket?list-type"]


def test_drop_after_effect_loses_only_the_answer(proxy: FaultProxy, world: World) -> None:
    proxy.rules.append(Rule(on("SendMessage"), drop_after_effect, times=1))
    with pytest.raises(ConnectionClosedError):
        send(proxy, world, '{"n": 2}')
    assert world.messages("reward-point") == [{"n": 2}]
    send(proxy, world, '{"n": 3}')
    assert world.messages("reward-point") == [{"n": 3}]


def test_a_retrying_client_sends_twice_through_a_lost_answer(proxy: FaultProxy, world: World) -> None:
    proxy.rules.append(Rule(on("SendMessage"), drop_after_effect, times=1))
    send(proxy, world, '{"n": 4}', Config(retries={"mode": "standard", "total_max_attempts": 2}))
    assert world.message_count("reward-point") == 2
    assert world.messages("reward-point") == [{"n": 4}, {"n": 4}]


def test_drop_before_has_no_effect(proxy: FaultProxy, world: World) -> None:
    proxy.rules.append(Rule(anything, drop_before))
    with pytest.raises(ConnectionClosedError):
        send(proxy, world)
    assert world.message_count("reward-point") == 0
    assert proxy.count("SendMessage") == 1


def test_hang_takes_effect_and_outlasts_the_client(proxy: FaultProxy, world: World) -> None:
    proxy.rules.append(Rule(on("SendMessage"), hang(600)))
    with pytest.raises(ReadTimeoutError):
        send(proxy, world, '{"n": 5}', Config(retries={"total_max_attempts": 1}, read_timeout=0.3))
    assert world.messages("reward-point") == [{"n": 5}]


def test_closing_ends_a_hanging_request(emulator: str, world: World) -> None:
    failed: list[BaseException] = []
    arrived = threading.Event()

    def ask() -> None:
        try:
            send(wire, world, '{"n": 6}')
        except ConnectionClosedError as error:
            failed.append(error)

    with FaultProxy(emulator) as wire:
        wire.rules.append(Rule(on("SendMessage"), callback(lambda _: arrived.set(), then=hang(600))))
        client = threading.Thread(target=ask)
        client.start()
        assert arrived.wait(10)
    started = time.monotonic()
    client.join(10)
    assert not client.is_alive()
    assert time.monotonic() - started < 5
    assert len(failed) <= 1  # the answer may have made it out
    world.messages("reward-point")


def test_status_answers_without_effect(proxy: FaultProxy, world: World) -> None:
    body = json.dumps({"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "gone"}).encode()
    proxy.rules.append(Rule(on("SendMessage"), status(400, body, {"Content-Type": "application/x-amz-json-1.0"})))
    with pytest.raises(ClientError, match="gone") as refused:
        send(proxy, world)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert world.message_count("reward-point") == 0


def test_rewrite_alters_the_answer(proxy: FaultProxy, world: World) -> None:
    world.put(booking("R0", TIME))
    s3 = connect("s3", proxy)
    s3.put_object(Bucket=world.bucket, Key="k", Body=b"truth")
    proxy.rules += [
        Rule(on("Query"), rewrite_json(lambda page: {**page, "Items": [], "Count": 0})),
        Rule(on("GET object"), rewrite(lambda body: body.replace(b"truth", b"lies!!"))),
    ]
    assert query(connect("dynamodb", proxy), world)["Items"] == []
    assert s3.get_object(Bucket=world.bucket, Key="k")["Body"].read() == b"lies!!"
    s3.delete_object(Bucket=world.bucket, Key="k")


def test_callback_changes_the_world_in_between(proxy: FaultProxy, world: World) -> None:
    world.put(booking("R1", "2026-09-18T15:30:00Z"))
    seen: list[Request] = []

    def move(request: Request) -> None:
        seen.append(request)
        world.update("R1", BookingTimeUTC="2026-09-19T15:30:00Z", ShopId=7, OrderTime=None)

    proxy.rules.append(Rule(on("Query"), callback(move), times=1))
    client = connect("dynamodb", proxy)
    assert query(client, world, "2026-09-18")["Items"] == []
    moved = booking("R1", "2026-09-19T15:30:00Z", shop=7, OrderTime=None)
    assert query(client, world, "2026-09-19")["Items"] == [moved]
    assert seen[0].operation == "DynamoDB_20120810.Query"
    assert world.item("R1") == moved
    world.delete("R1")


def test_what_a_rule_raises_reaches_the_test(emulator: str, world: World) -> None:
    def fail(request: Request) -> None:
        raise ConnectionError("a bug in a test")

    def use() -> None:
        with FaultProxy(emulator) as wire:
            wire.rules.append(Rule(anything, callback(fail)))
            with pytest.raises(ConnectionClosedError):
                send(wire, world)

    with pytest.raises(ConnectionError, match="a bug in a test"):
        use()


@pytest.mark.parametrize(
    ("service", "call", "code", "http"),
    [
        ("dynamodb", query, "ProvisionedThroughputExceededException", 400),
        (
            "sqs",
            lambda c, w: c.send_message(QueueUrl=w.queue_url("reward-point"), MessageBody="x"),
            "RequestThrottled",
            400,
        ),
        ("s3", lambda c, w: c.put_object(Bucket=w.bucket, Key="k", Body=b"x"), "SlowDown", 503),
    ],
)
def test_throttle_speaks_each_service_s_words(
    proxy: FaultProxy, world: World, service: str, call: Any, code: str, http: int
) -> None:
    proxy.rules.append(Rule(anything, throttle, times=2))
    with pytest.raises(ClientError) as refused:
        call(connect(service, proxy), world)
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == http
    retrying = Config(retries={"mode": "standard", "total_max_attempts": 3}, s3={"addressing_style": "path"})
    call(connect(service, proxy, retrying), world)
    assert len(proxy.log) == 3
    world.receive_all("reward-point")
    world.s3.delete_object(Bucket=world.bucket, Key="k")


def test_skip_spares_the_first_ones(proxy: FaultProxy, world: World) -> None:
    proxy.rules.append(Rule(on("SendMessage"), drop_before, times=1, skip=2))
    outcomes = []
    for n in range(4):
        try:
            send(proxy, world, json.dumps(n))
            outcomes.append("sent")
        except ConnectionClosedError:
            outcomes.append("lost")
    assert outcomes == ["sent", "sent", "lost", "sent"]
    assert world.messages("reward-point") == [0, 1, 3]


def test_a_dead_emulator_closes_the_connection(world: World) -> None:
    with ministack_server() as url:
        pass
    with FaultProxy(url) as wire, pytest.raises((ConnectionClosedError, EndpointConnectionError)):
        send(wire, world)


def test_query_server_shows_what_no_emulator_does(emulator: str, world: World) -> None:
    keys = [{"Id": {"S": name}} for name in "ABAB"]
    pages = iter([{"Items": [], "Count": 0, "LastEvaluatedKey": key} for key in keys])
    last = b'{"Items": [], "Count": 0, "LastEvaluatedKey": {}}'
    with query_server(
        emulator,
        lambda asked: next(pages, last),
        describe_table=lambda asked: {"Table": {"TableName": asked["TableName"], "TableStatus": "UPDATING"}},
        batch_get_item=lambda asked: None,
    ) as wire:
        client = connect("dynamodb", wire)
        shown = [query(client, world).get("LastEvaluatedKey") for _ in range(5)]
        assert shown == [*keys, {}]
        assert client.describe_table(TableName="any")["Table"]["TableStatus"] == "UPDATING"
        world.put(booking("R0", TIME))
        asked = {world.table: {"Keys": [{"Id": {"S": "R0"}}]}}
        assert client.batch_get_item(RequestItems=asked)["Responses"][world.table] == [booking("R0", TIME)]
        assert client.get_item(TableName=world.table, Key={"Id": {"S": "R0"}})["Item"] == booking("R0", TIME)


def test_answer_sees_the_request(proxy: FaultProxy, world: World) -> None:
    proxy.rules.append(Rule(on("Query"), answer(lambda asked: {"Items": [], "Count": asked["Limit"]})))
    assert query(connect("dynamodb", proxy), world, Limit=17)["Count"] == 17


def test_many_connections_at_once(proxy: FaultProxy, world: World) -> None:
    client = connect("sqs", proxy, Config(max_pool_connections=32))
    url = world.queue_url("reward-ecoupon")
    threads = [
        threading.Thread(target=client.send_message, kwargs={"QueueUrl": url, "MessageBody": json.dumps(n)})
        for n in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(world.messages("reward-ecoupon")) == list(range(32))


@pytest.mark.parametrize("server", [moto_server, ministack_server])
def test_world_in_each_emulator(server: Any) -> None:
    with server() as url:
        world = World(url, "", projection=["RewardStatus"], fifo=True)
        world.put_many(booking(f"R{n:02}", f"2026-09-17T15:{n:02}:00.5Z", note=str(n)) for n in range(30))
        items = query(world.dynamodb, world)["Items"]
        assert [item["Id"]["S"] for item in items] == [f"R{n:02}" for n in range(30)]
        assert set(items[0]) == {"Id", "BookingDateUTC", "BookingTimeUTC", "RewardStatus"}
        queue = world.queue_url("reward-point")
        for n in range(3):
            world.sqs.send_message(
                QueueUrl=queue, MessageBody=json.dumps({"n": n}), MessageGroupId="g", MessageDeduplicationId=str(n)
            )
        assert world.message_count("reward-point") == 3
        received = world.receive_all("reward-point")
        assert [json.loads(message["Body"]) for message in received] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert received[0]["Attributes"]["MessageGroupId"] == "g"
        assert world.message_count("reward-point") == 0
        environment = world.environment("http://proxy")
        assert environment["DISPATCH_LEDGER_AWS__ENDPOINT_URL"] == "http://proxy"
        assert environment["DISPATCH_LEDGER_SOURCE__TABLE"] == "PromotionRewardBooking"
        assert json.loads(environment["DISPATCH_LEDGER_ROUTES"])["Point"] == {
            "job": "RewardPoint",
            "queue": "reward-point.fifo",
        }
        reset(url)
        assert world.dynamodb.list_tables()["TableNames"] == []
        World(url, "")
