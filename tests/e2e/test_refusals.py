"""What is missing or wrong is said in one line that names it and how to mend it, before anything is written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import drained, hours_ago
from tests.product import Done, Product
from tests.rig import WINDOW, Rig
from tests.wire import FaultProxy, Rule, on, rewrite_json, status

HOUR = WINDOW[:13]
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def nothing_written(world: World, rig: Rig) -> Iterator[None]:
    """After each test here, neither the ledger nor the bucket nor a queue has anything new."""
    yield
    for table in ("windows", "runs", "claims", "entries", "attempts", "payload_parts", "pages", "findings"):
        assert rig.rows(f"SELECT 1 FROM {table}") == [], table
    assert world.objects() == {}
    assert drained(world) == []


def refused(done: Done, code: int, *texts: str) -> str:
    done.ended(code)
    assert done.document == {"error": done.error}
    for text in texts:
        assert text in done.error, done.error
    assert "Traceback" not in done.err
    return done.error


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"source__table": "NoSuchTable"}, ("NoSuchTable", "does not exist", "source.table")),
        ({"source__index": "NoSuchIndex"}, ("NoSuchIndex", "source.index")),
        ({"source__date_attribute": "BookingTimeUTC", "source__time_attribute": "BookingDateUTC"}, ("source.index",)),
        ({"source__time_attribute": "OrderTime"}, ("OrderTime", "source.time_attribute")),
        ({"objects__bucket": "no-such-bucket"}, ("no-such-bucket", "does not exist", "objects.bucket")),
        ({"objects__bucket": None}, ("objects.bucket",)),
        (
            {"routes": '{"Point": {"job": "RewardPoint", "queue": "no-such-queue"}}'},
            ("no-such-queue", "does not exist", "routes"),
        ),
    ],
    ids=["table", "index", "index keys swapped", "index keys other", "bucket", "bucket unset", "queue"],
)
def test_something_that_is_not_there(product: Product, settings: dict[str, str | None], texts: tuple[str, ...]) -> None:
    refused(product.dispatch(WINDOW, **settings), 2, *texts)


def test_an_index_without_all_attributes_and_verify_due_off(
    ministack: str, product: Product, rig: Rig, world: World
) -> None:
    product.world = World(ministack, projection="KEYS_ONLY")
    product.world.put(booking("r1", f"{HOUR}:01:00Z"))
    done = product.dispatch(WINDOW, dispatch__verify_due="false")
    refused(done, 2, "dispatch.verify_due", "BookingDateUTC-BookingTimeUTC-index", "project")


@pytest.mark.parametrize("state", [{"Backfilling": True, "IndexStatus": "CREATING"}, {"IndexStatus": "CREATING"}])
def test_an_index_that_is_still_being_filled(product: Product, world: World, state: dict[str, Any]) -> None:
    def change(document: Any) -> Any:
        document["Table"]["GlobalSecondaryIndexes"][0] |= state
        return document

    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("DescribeTable"), rewrite_json(change)))
        refused(product.dispatch(WINDOW, endpoint=wire.url), 2, "BookingDateUTC-BookingTimeUTC-index", "wait")


def test_no_credentials(product: Product) -> None:
    nothing: dict[str, str | None] = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    refused(product.dispatch(WINDOW, environ=nothing), 2, "credentials", "AWS_ACCESS_KEY_ID")


def test_half_of_the_credentials(product: Product) -> None:
    refused(product.dispatch(WINDOW, environ={"AWS_SECRET_ACCESS_KEY": None}), 2, "credentials")


def test_a_profile_that_is_not_there(product: Product) -> None:
    nothing: dict[str, str | None] = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_PROFILE": "nope"}
    refused(product.dispatch(WINDOW, environ=nothing), 2, "nope", "AWS_PROFILE")


def test_no_region(product: Product) -> None:
    nothing: dict[str, str | None] = {"AWS_DEFAULT_REGION": None, "AWS_REGION": None}
    refused(product.dispatch(WINDOW, environ=nothing, aws__region=None), 2, "region", "aws.region")


@pytest.mark.parametrize("operation", ["DescribeTable", "HEAD bucket", "GetQueueUrl"])
def test_access_denied(product: Product, world: World, operation: str) -> None:
    body = b"" if operation == "HEAD bucket" else b'{"__type": "AccessDeniedException", "message": "not for you"}'
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on(operation), status(403 if operation == "HEAD bucket" else 400, body)))
        refused(product.dispatch(WINDOW, endpoint=wire.url), 2, "denied", "credentials")


def test_an_endpoint_that_does_not_answer(product: Product) -> None:
    refused(product.dispatch(WINDOW, endpoint=NOWHERE, impatient=True), 1, "aws.endpoint_url")


def test_a_database_that_does_not_answer(product: Product) -> None:
    url = "postgresql+psycopg://me:secret@127.0.0.1:9/ledger"
    error = refused(
        product.dispatch(WINDOW, ledger__database_url=url, impatient=True), 1, "database", "ledger.database_url"
    )
    assert "secret" not in error


def test_a_database_that_does_not_exist(product: Product, ledger_url: str) -> None:
    url = ledger_url.replace("/test_", "/no_such_")
    refused(product.dispatch(WINDOW, ledger__database_url=url), 1, "no_such_", "ledger.database_url")


@pytest.mark.parametrize(
    "arguments", [("dispatch", "--window", WINDOW), ("show", "window", WINDOW), ("dispatch", "--due")]
)
def test_a_database_without_the_ledgers_tables(
    product: Product, empty_database: str, arguments: tuple[str, ...]
) -> None:
    done = product.run(*arguments, "--json", ledger__database_url=empty_database)
    refused(done, 1, "dispatch-ledger db upgrade")


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"dispatch__lease": "soon"}, ("DISPATCH_LEDGER_DISPATCH__LEASE", "dispatch.lease", "soon", "500ms")),
        ({"dispatch__grouping": "both"}, ("dispatch.grouping", "both", "window")),
        ({"dispatch__verify_due": "maybe"}, ("dispatch.verify_due", "maybe", "true or false")),
        (
            {"dispatch__leese": "1s"},
            ("DISPATCH_LEDGER_DISPATCH__LEESE", "unknown key", "DISPATCH_LEDGER_DISPATCH__LEASE"),
        ),
        ({"routes": "{"}, ("routes", "JSON")),
        ({"objects__prefix": "/x"}, ("objects.prefix", "/x")),
        ({"schedule__not_before": "yesterday"}, ("schedule.not_before", "yesterday")),
        ({"ledger__database_url": "mysql://me:secret@db/x"}, ("ledger.database_url", "postgresql://", "embedded")),
    ],
)
def test_a_bad_setting(product: Product, settings: dict[str, str | None], texts: tuple[str, ...]) -> None:
    error = refused(product.dispatch(WINDOW, **settings), 2, *texts)
    assert "secret" not in error


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("[dispatch\n", ("dispatch-ledger.toml", "line 1")),
        ("[dispatch]\nleaze = '60s'\n", ("dispatch-ledger.toml", "dispatch.leaze", "60s", "dispatch.lease")),
        ("[reconcile]\ngrace = 10\n", ("dispatch-ledger.toml", "reconcile.grace", "10m")),
        ("[no]\nsuch = 1\n", ("dispatch-ledger.toml", "no")),
    ],
    ids=["no TOML", "unknown key", "bad value", "unknown section"],
)
def test_a_bad_file(product: Product, tmp_path: Path, text: str, texts: tuple[str, ...]) -> None:
    (tmp_path / "dispatch-ledger.toml").write_text(text)
    refused(product.dispatch(WINDOW), 2, *texts)


def test_the_two_lenient_keys_are_never_an_error(product: Product, world: World, rig: Rig) -> None:
    """Checked on a window that has not ended, so that nothing is written either way."""
    done = product.dispatch(hours_ago(-1), dispatch__pagination_enabled="perhaps", dispatch__page_size="lots")
    assert "ended" in refused(done, 2)
