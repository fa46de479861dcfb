"""A reconcile meets what AWS does wrong: bounded retries, then one line, and nothing concluded from half a look."""

from typing import Any

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import drained, fill, hours_ago
from tests.product import Done, Product
from tests.rig import Rig
from tests.wire import Action, FaultProxy, Rule, drop_after_effect, drop_before, on, rewrite_json, status, throttle

LISTING = "GET bucket?list-type"


@pytest.fixture
def missed(product: Product, world: World) -> str:
    """A window that was dispatched, with one record that came later."""
    product.settings |= {"reconcile.grace": "0s", "reconcile.orphan_grace": "0s", "dispatch.page_size": "4"}
    window = hours_ago(1)
    fill(world, window)
    product.dispatch(window).ended(0)
    drained(world)
    world.put(booking("late", f"{window[:13]}:30:00Z", member=77))
    return window


def reconciled(product: Product, world: World, window: str, rule: Rule, **options: Any) -> Done:
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(rule)
        words = ("reconcile", "--window", window, "--json")
        done = product.run(*words, endpoint=wire.url, dispatch__lease="20s", **options)
    assert rule.used > 0
    return done


@pytest.mark.parametrize("operation", ["Query", "BatchGetItem", "PUT object", LISTING])
@pytest.mark.parametrize("action", [drop_before, drop_after_effect, status(503), throttle])
def test_passing_trouble_heals(product: Product, world: World, missed: str, operation: str, action: Action) -> None:
    if action is throttle and operation in {"PUT object", LISTING}:
        action = status(503, b"<Error><Code>SlowDown</Code></Error>")
    done = reconciled(product, world, missed, Rule(on(operation), action, times=2)).ended(0)
    assert done.document["repaired"] == 1
    assert done.err == ""
    assert len(drained(world)) == 1


@pytest.mark.parametrize("operation", ["Query", "BatchGetItem", LISTING])
def test_lasting_trouble_is_one_line(product: Product, world: World, rig: Rig, missed: str, operation: str) -> None:
    done = reconciled(product, world, missed, Rule(on(operation), status(500)), impatient=True).ended(1)
    assert done.error
    assert done.document["windows"][0]["error"] == done.error
    kinds = {row[0] for row in rig.rows("SELECT kind FROM findings")}
    assert kinds <= {"missed"}, "a listing that fails is no list of missing objects"
    again = product.run("reconcile", "--window", missed, "--json").ended(0)
    assert again.document["open"] == 0
    assert len(drained(world)) == 1
    rig.assert_books_balance()


def test_a_listing_that_breaks_off_concludes_nothing(product: Product, world: World, rig: Rig, missed: str) -> None:
    reconciled(
        product, world, missed, Rule(on(LISTING), status(403, b"<Error><Code>AccessDenied</Code></Error>"))
    ).ended(1)
    assert rig.value("SELECT count(*) FROM findings WHERE kind IN ('missing_object', 'orphan_object')") == 0


def test_page_keys_that_go_in_circles_are_noticed(product: Product, world: World, missed: str) -> None:
    first: list[object] = []

    def circle(page: dict[str, object]) -> dict[str, object]:
        first.append(page.get("LastEvaluatedKey") or first[0])
        return page | {"LastEvaluatedKey": first[0]}

    done = reconciled(product, world, missed, Rule(on("Query"), rewrite_json(circle))).ended(1)
    assert "would never end" in done.error
    assert drained(world) == []


def test_a_record_that_the_index_shows_late_but_the_table_has_not(product: Product, world: World, missed: str) -> None:
    """The index says due, the table says rewarded: no alarm, and nothing is sent."""
    world.update("late", RewardStatus="Rewarded")

    def stale(page: dict[str, object]) -> dict[str, object]:
        for item in page["Items"]:  # type: ignore[attr-defined]
            if item["Id"] == {"S": "late"}:
                item["RewardStatus"] = {"S": "WaitToReward"}
        return page

    done = reconciled(product, world, missed, Rule(on("Query"), rewrite_json(stale))).ended(0)
    (window,) = done.document["windows"]
    assert (window["findings"], window["coverage"]) == ([], {"evaluated": 12, "due": 10, "claimed": 10})
    assert drained(world) == []


@pytest.mark.parametrize(
    "answer", [b"<ListBucketResult><Contents><Key>a</Key>", b"<Error><Code>InternalError</Code></Error>"]
)
def test_half_a_listing_is_asked_for_again(world: World, rig: Rig, answer: bytes) -> None:
    """S3 may say 200 before it knows that it fails."""
    world.put_many(booking(f"r{at}", f"2026-09-17T15:0{at}:00Z", member=at) for at in range(3))
    rig.run()
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on(LISTING), status(200, answer), times=1))
        document = rig.reconcile(endpoint=wire.url)
        assert wire.rules[0].used == 1
    assert [(one["error"], one["findings"]) for one in document["windows"]] == [(None, [])]
