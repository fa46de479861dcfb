"""`show window | entry | record`: the whole story, for people and for programs."""

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import drained, fill
from tests.product import Product
from tests.rig import WINDOW, Rig

HOUR = WINDOW[:13]
RECORD_MEMBERS = ["record_id", "pipeline", "answer", "reason", "source", "occurrences", "findings", "events"]
SOURCE_MEMBERS = ["found", "verdict", "why", "booking_time", "status", "window", "windows", "error"]
NO_ENTRY = "01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51"


def in_time(document: dict[str, list[dict[str, str]]]) -> bool:
    times = [event["at"] for event in document["events"]]
    return bool(times) and times == sorted(times)


def test_a_window(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    world.put(booking("bad", f"{HOUR}:30:00Z", MemberId=None))
    before = product.run("show", "window", WINDOW, "--json").ended(0)
    assert before.document["state"] == "not_dispatched"
    assert before.document["totals"]["entries"] == 0
    assert before.err == ""
    product.dispatch(WINDOW).ended(3)
    done = product.run("show", "window", WINDOW, "--json").ended(0)
    document = done.document
    assert (document["window"], document["state"], document["pipeline"]) == (WINDOW, "dispatched", "reward")
    assert (
        document["totals"] | {"entries": 5, "confirmed": 5, "pending": 0, "sending": 0, "void": 0, "records": 10}
        == (document["totals"])
    )
    assert [one["kind"] for one in document["findings"]] == ["bad_record"]
    assert len(document["entries"]) == 5
    assert [run["outcome"] for run in document["runs"]] == ["completed"]
    assert in_time(document)
    table = product.run("show", "window", WINDOW).ended(0)
    for text in (WINDOW, "dispatched", "RewardPoint", "RewardECoupon", "bad_record", "missing_attribute", "history"):
        assert text in table.out, text
    assert table.err == ""


def test_an_entry(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    product.dispatch(WINDOW).ended(0)
    message = next(one for one in drained(world) if one["records"] == 3)
    document = product.run("show", "entry", message["entry_id"], "--json").ended(0).document
    for name in ("entry_id", "idempotency_key", "job", "group", "object", "content_hash", "records", "generation"):
        shown = document[name]
        assert (shown | message[name] == shown) if isinstance(shown, dict) else shown == message[name], name
    assert document["state"] == "confirmed"
    assert [one["record_id"].rpartition("-")[2] for one in document["occurrences"]] != []
    assert in_time(document)
    table = product.run("show", "entry", message["entry_id"]).ended(0)
    for text in (message["idempotency_key"], message["object"]["key"][:40], "confirmed", f"{HOUR}-a1"):
        assert text in "".join(table.out.split()), text


def test_a_record(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    product.dispatch(WINDOW).ended(0)
    later = "2026-09-17T18:00:00Z"
    world.update(f"{HOUR}-a1", BookingTimeUTC="2026-09-17T18:20:00.1234567Z")
    waiting = product.run("show", "record", f"{HOUR}-a1", "--json", schedule__catch_up="1h").ended(0).document
    assert list(waiting) == RECORD_MEMBERS
    assert list(waiting["source"]) == SOURCE_MEMBERS
    assert (waiting["reason"], waiting["source"]["verdict"]) == ("window_too_old", "due")
    assert (waiting["source"]["found"], waiting["source"]["window"]) == (True, later)
    product.dispatch(later).ended(0).books(claimed=1)
    document = product.run("show", "record", f"{HOUR}-a1", "--json").ended(0).document
    assert (document["reason"], document["answer"][:4]) == ("dispatched", "Yes:")
    assert [one["booking_time"] for one in document["occurrences"]] == [
        "2026-09-17T15:01:00Z",
        "2026-09-17T18:20:00.1234567Z",
    ]
    assert in_time(document)
    table = product.run("show", "record", f"{HOUR}-a1", environ={"COLUMNS": "200"}).ended(0)
    for text in ("2026-09-17T18:20:00.1234567Z", "answer", "source now", "WaitToReward", "claims", "history"):
        assert text in table.out, text
    assert document["answer"] in " ".join(table.out.split())
    assert table.err == ""


def test_a_record_that_was_set_aside(product: Product, world: World, rig: Rig) -> None:
    world.put(booking("bad", f"{HOUR}:30:00Z", type="Unheard"))
    product.dispatch(WINDOW).ended(3)
    document = product.run("show", "record", "bad", "--json").ended(0).document
    assert document["occurrences"] == []
    assert [(one["kind"], one["cause"]) for one in document["findings"]] == [("bad_record", "unknown_route")]
    assert (document["reason"], document["source"]["verdict"]) == ("set_aside", "set_aside")
    assert "unknown_route" in product.run("show", "record", "bad").ended(0).out


def test_a_record_whose_source_cannot_be_asked(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    product.dispatch(WINDOW).ended(0)
    without = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    done = product.run("show", "record", f"{HOUR}-a1", "--json", environ=without).ended(0)
    assert (done.document["reason"], done.document["source"]["found"]) == ("dispatched", None)
    assert "no credentials found" in done.document["source"]["error"]
    assert done.err == ""
    table = product.run("show", "record", f"{HOUR}-a1", environ=without).ended(0)
    assert "could not be asked" in table.out
    assert "no credentials found" in table.out


def test_ids_that_nobody_knows(product: Product) -> None:
    assert NO_ENTRY in product.run("show", "entry", NO_ENTRY).ended(1).error
    done = product.run("show", "entry", NO_ENTRY, "--json").ended(1)
    assert done.document == {"error": done.error}
    assert product.run("show", "record", "nobody", "--json").ended(0).document["occurrences"] == []
    assert "nobody" in product.run("show", "record", "nobody").ended(0).out
    assert "not_dispatched" in product.run("show", "window", "2020-01-01T00:00:00Z").ended(0).out


@pytest.mark.parametrize(
    "arguments",
    [("entry", "7"), ("entry", ""), ("entry", NO_ENTRY + "x"), ("window", "today"), ("window", "2026-09-17T15:01:00Z"),
     ("window",), ("nothing", "7")],
)  # fmt: skip
def test_ids_that_are_none(product: Product, arguments: tuple[str, ...]) -> None:
    done = product.run("show", *arguments, "--json").ended(2)
    assert done.document == {"error": done.error}


@pytest.mark.parametrize("identity", ["\x1b[31mred", "-dash", "\udcff"])
def test_record_ids_of_any_kind_are_looked_up_not_choked_on(product: Product, identity: str) -> None:
    done = product.run("show", "record", "--json", "--", identity)
    assert done.code == 0, done.err
    assert done.document["occurrences"] == []
    table = product.run("show", "record", "--", identity).ended(0)
    assert "\x1b[31m" not in table.out


def test_another_pipeline_does_not_see_it(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    product.dispatch(WINDOW).ended(0)
    entry = drained(world)[0]["entry_id"]
    product.run("show", "entry", entry, pipeline="other").ended(1)
    assert (
        product.run("show", "record", f"{HOUR}-a1", "--json", pipeline="other").ended(0).document["occurrences"] == []
    )
    assert product.run("show", "window", WINDOW, "--json", pipeline="other").document["state"] == "not_dispatched"
