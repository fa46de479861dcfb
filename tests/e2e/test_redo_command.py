"""A controlled redo on the real command line: its documents, its exit codes, and what else happens meanwhile."""

import signal
from typing import Any

from tests.aws_servers import World, booking
from tests.fault.windows import drained
from tests.product import Product, Running, until
from tests.rig import WINDOW, Rig
from tests.wire import FaultProxy, Rule, callback, on

BOOKED = "2026-09-17T15:%02d:00Z"
FIELDS = {
    "plan_id": str,
    "window": str,
    "reason": str,
    "by": str,
    "state": str,
    "hash": str,
    "jobs": int,
    "records": int,
    "already_worked": int,
    "no_longer_due": int,
    "entries": list,
}


def plan(product: Product, *arguments: str, **options: Any) -> Any:
    """Plan a redo of the window."""
    command = ("redo", "plan", "--window", WINDOW, "--reason", "ticket 4711", "--json", *arguments)
    document = product.run(*command, **options).ended(0).document
    assert {name: type(document[name]) for name in FIELDS} == FIELDS
    return document


def dispatched(product: Product, world: World) -> None:
    world.put_many(booking(one, BOOKED % at, member=at) for at, one in enumerate(("r1", "r2"), 1))
    product.dispatch(WINDOW).ended(0)
    assert len(drained(world)) == 2


def test_case_8_a_redo_within_a_minute_is_really_delivered(ministack: str, product: Product, rig: Rig) -> None:
    """A FIFO queue drops what it has seen in the last five minutes; the generation makes it another message."""
    world = product.world = World(ministack, fifo=True)
    dispatched(product, world)
    made = plan(product, "--by", "ann")
    assert (made["window"], made["by"], made["reason"], made["state"]) == (WINDOW, "ann", "ticket 4711", "planned")
    shown = product.run("redo", "show", made["plan_id"]).ended(0)
    assert shown.err == ""
    assert all(text in shown.out for text in (made["plan_id"], "ticket 4711", "r1", "planned"))
    assert product.run("redo", "show", made["plan_id"], "--json").ended(0).document == made
    applied = product.run("redo", "apply", made["plan_id"], "--json").ended(0).document
    assert applied["state"] == "applied"
    assert (applied["run"]["cause"], applied["run"]["confirmed"], applied["reconcile"]["open"]) == ("redo", 2, 0)
    assert [message["generation"] for message in drained(world)] == [1, 1]
    again = product.run("redo", "apply", made["plan_id"], "--json").ended(0)
    assert (again.document, drained(world)) == (applied, [])
    rig.assert_books_balance()


def test_what_is_refused(product: Product, world: World, rig: Rig) -> None:
    dispatched(product, world)
    assert "reason" in product.run("redo", "plan", "--window", WINDOW).ended(2).error
    assert "--reason is empty" in product.run("redo", "plan", "--window", WINDOW, "--reason", " ").ended(2).error
    refused = product.run("redo", "plan", "--window", WINDOW, "--reason", "x", "--group", "{", "--json").ended(2)
    assert list(refused.document) == ["error"]
    assert "no plan id" in product.run("redo", "show", "7").ended(2).error
    nobody = "01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51"
    assert f"no plan {nobody}" in product.run("redo", "apply", nobody).ended(1).error
    made = plan(product)
    cancelled = product.run("redo", "cancel", made["plan_id"], "--json").ended(0).document
    assert cancelled == made | {"state": "cancelled"}
    assert "cancelled" in product.run("redo", "apply", made["plan_id"]).ended(5).error
    made = plan(product)
    world.update("r1", Points=7)
    stale = product.run("redo", "apply", made["plan_id"], "--json").ended(5)
    assert (stale.document["state"], stale.document["reconcile"]) == ("stale", None)
    assert "out of date" in stale.error
    assert drained(world) == []
    empty = product.run("redo", "plan", "--window", WINDOW, "--reason", "x", "--record", "nobody", "--json").ended(0)
    assert empty.err.startswith("nothing would be sent")
    assert (empty.document["jobs"], empty.document["entries"]) == (0, [])


def test_what_is_found_at_the_end_of_an_apply(product: Product, world: World, rig: Rig) -> None:
    """The closing reconcile has no grace, and its open findings count."""
    dispatched(product, world)
    made = plan(product)
    world.put(booking("odd", BOOKED % 9, type="Unheard"))
    applied = product.run("redo", "apply", made["plan_id"], "--json").ended(3).document
    found = [
        (one["kind"], one["cause"]) for one in applied["reconcile"]["windows"][0]["findings"] if one["state"] == "open"
    ]
    assert found == [("bad_record", "unknown_route")]
    assert (applied["state"], applied["run"]["confirmed"]) == ("applied", 2)
    product.run("redo", "apply", made["plan_id"]).ended(0)


def test_case_16_a_redo_during_a_dispatch(product: Product, world: World, rig: Rig) -> None:
    dispatched(product, world)
    made = plan(product)
    world.put(booking("r3", BOOKED % 3, member=3))
    running: list[Running] = []
    refused: list[int] = []
    with FaultProxy(world.endpoint) as wire:

        def redo_now(_: Any) -> None:
            refused.append(product.run("redo", "apply", made["plan_id"], "--json").code)

        wire.rules.append(Rule(on("PUT object"), callback(redo_now), times=1))
        running.append(product.start_dispatch(WINDOW, endpoint=wire.url, dispatch__lease="30s"))
        running[0].done().ended(0)
    assert refused == [4]
    assert len(drained(world)) == 1, "afterwards once each"
    product.run("redo", "apply", made["plan_id"]).ended(5)
    product.run("redo", "apply", plan(product)["plan_id"]).ended(0)
    assert len(drained(world)) == 3
    rig.assert_books_balance()


def test_a_dispatch_during_an_apply(product: Product, world: World, rig: Rig) -> None:
    dispatched(product, world)
    made = plan(product)
    ends: list[int] = []
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("SendMessageBatch"), callback(lambda _: ends.append(product.dispatch(WINDOW).code))))
        product.run("redo", "apply", made["plan_id"], endpoint=wire.url, dispatch__lease="30s").ended(0)
    assert set(ends) == {4}
    assert [message["generation"] for message in drained(world)] == [1, 1]
    product.dispatch(WINDOW).ended(0).books(claimed=0, recovered=0)
    rig.assert_books_balance()


def test_an_apply_is_cancelled_and_finished_by_a_repeat(product: Product, world: World, rig: Rig) -> None:
    dispatched(product, world)
    made = plan(product)
    running: list[Running] = []
    with FaultProxy(world.endpoint) as wire:

        def end_it(_: Any) -> None:
            until(lambda: running, "it is started")
            running[0].signal(signal.SIGTERM)

        wire.rules.append(Rule(on("PUT object"), callback(end_it), times=1))
        running.append(product.start("redo", "apply", made["plan_id"], "--json", endpoint=wire.url))
        done = running[0].done().ended(143)
    assert (done.document["state"], done.document["run"]["outcome"]) == ("applying", "cancelled")
    assert "can only be finished" in product.run("redo", "cancel", made["plan_id"]).ended(5).error
    applied = product.run("redo", "apply", made["plan_id"], "--json").ended(0).document
    assert (applied["state"], applied["run"]["recovered"]) == ("applied", 2)
    assert len(drained(world)) == 2
    rig.assert_books_balance()
