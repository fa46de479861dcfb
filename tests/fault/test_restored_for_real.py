"""A ledger that has really forgotten: a dump of it was restored, or a replica promoted that had not heard of all."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.store import connect_arguments
from tests import copies
from tests.aws_servers import World, booking
from tests.fault.windows import drained, hours_ago
from tests.product import Product
from tests.scratch import short_folder

Forget = Callable[[Callable[[], None]], None]
"""Lets the ledger forget all that the given function does."""


@pytest.fixture
def window() -> str:
    return hours_ago(2)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = short_folder()
    yield made
    shutil.rmtree(made)


def put(world: World, window: str, number: int) -> None:
    world.put(booking(f"r{number}", f"{window[:13]}:{number:02d}:00Z", member=number))


def check_the_way_back(product: Product, world: World, window: str, forgetting: Forget) -> None:
    """Dispatch, forget what is dispatched then, and come back, command by command."""
    put(world, window, 1)
    product.dispatch(window).ended(0).books(claimed=1)

    def go_on() -> None:
        put(world, window, 2)
        product.dispatch(window).ended(0).books(claimed=1)

    forgetting(go_on)
    put(world, window, 3)
    sent = drained(world)
    assert len(sent) == 2
    check_that_all_refuse(product, window)
    assert drained(world) == []

    adopted = product.run("recover", "--restored", "--json").ended(0).document
    assert [(one["window"], one["entries"], one["held"]) for one in adopted["windows"]] == [(window, 1, True)]
    product.dispatch(window).ended(5)
    word = ("--restored", "--window", window, "--as", "sent", "--reason", "the queue has taken all", "--by", "ann")
    decided = product.run("recover", *word, "--json").ended(0).document
    assert (decided["vouched"], decided["to_be_sent_again"], decided["released"]) == (1, 0, True)
    product.dispatch(window).ended(0).books(claimed=1, already_claimed=2, recovered=0)
    new = drained(world)
    assert [one["records"] for one in new] == [1]
    assert new[0]["idempotency_key"] not in {one["idempotency_key"] for one in sent}
    assert witness_line(product, 0)["state"] == "ok"
    check_the_story(product, window)


def check_that_all_refuse(product: Product, window: str) -> None:
    """Whoever comes is told that the ledger has forgotten, and does nothing."""
    assert "was put back to an earlier state" in product.dispatch(window).ended(5).error
    due = product.run("dispatch", "--due", "--json", schedule__not_before=window, schedule__catch_up="3h").ended(5)
    assert not any(run["claimed"] or run["recovered"] for run in due.document["runs"])
    product.run("reconcile", "--window", window, "--json", reconcile__grace="0s").ended(5)
    release = ("--window", window, "--release-hold", "--reason", "x")
    assert "recover --restored" in product.run("reconcile", *release).ended(5).error
    told = witness_line(product, 2)
    assert told["state"] == "failed"
    assert window in told["detail"]


def witness_line(product: Product, code: int) -> dict[str, Any]:
    """Give what the doctor says of the witnesses."""
    checks = product.run("doctor", "--json").ended(code).document["checks"]
    (found,) = (one for one in checks if one["name"] == "witness")
    return dict(found)


def check_the_story(product: Product, window: str) -> None:
    story = product.run("show", "window", window, "--json").ended(0).document
    told = [(one["event"], one.get("by"), one["reason"]) for one in story["events"] if "reason" in one]
    assert [event for event, *_ in told] == [
        "window held", "objects adopted", "adopted jobs vouched for", "window released",
    ]  # fmt: skip
    assert told[-1] == ("window released", "ann", "the queue has taken all")
    assert story["held"] is None
    assert "the queue has taken all" in product.run("show", "window", window).ended(0).out


def test_a_dump_that_is_restored(product: Product, world: World, window: str, ledger_url: str, tmp_path: Path) -> None:
    def forgetting(go_on: Callable[[], None]) -> None:
        copies.dump_ledger(ledger_url, tmp_path / "ledger.dump")
        go_on()
        copies.put_in_place(copies.restore_beside(ledger_url, tmp_path / "ledger.dump"), ledger_url)

    check_the_way_back(product, world, window, forgetting)


def both(url: str, standby: str) -> str:
    """Name two servers in one URL, of which the one is meant that takes writes."""
    hosts = ",".join(connect_arguments(one)["host"] for one in (url, standby))
    database = connect_arguments(url)["dbname"]
    return f"postgresql+psycopg://postgres@/{database}?host={hosts}&port=5432,5432&target_session_attrs=read-write"


def test_a_replica_that_is_promoted_too_early(world: World, window: str, folder: Path, tmp_path: Path) -> None:
    with embedded_postgres(folder / "one") as url, copies.following(url, folder / "two") as standby:
        schema.upgrade(url)

        def forgetting(go_on: Callable[[], None]) -> None:
            copies.cut_off(standby)
            go_on()
            copies.kill_server(folder / "one")
            copies.promote(standby)

        settings: dict[str, str | None] = {"dispatch.lease": "2s"}
        with Product(world, both(url, standby), tmp_path, settings=settings) as product:
            check_the_way_back(product, world, window, forgetting)
