"""`reconcile` and `recover` on the command line: what they print, and with which code they end."""

from typing import Any

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import drained, fill, hours_ago
from tests.product import Done, Product, until
from tests.rig import WINDOW, Rig
from tests.wire import FaultProxy, Rule, callback, on

NO_GRACE: dict[str, str | None] = {"reconcile.grace": "0s", "reconcile.orphan_grace": "0s"}
FINDING = {
    "id",
    "kind",
    "cause",
    "window",
    "record_id",
    "entry_id",
    "object_key",
    "state",
    "repair",
    "first_seen_at",
    "detail",
}


@pytest.fixture(autouse=True)
def no_grace(product: Product) -> None:
    product.settings |= NO_GRACE


def reconcile(product: Product, *arguments: str, **options: Any) -> Done:
    return product.run("reconcile", *arguments, "--json", **options)


def test_a_clean_window(product: Product, world: World) -> None:
    world.put(booking("r1", "2026-09-17T15:01:00Z"))
    product.dispatch(WINDOW).ended(0)
    done = reconcile(product, "--window", WINDOW).ended(0)
    assert done.err == ""
    assert set(done.document) == {"run_id", "windows", "open", "repaired"}
    (window,) = done.document["windows"]
    assert window["window"] == WINDOW
    assert window["coverage"] == {"evaluated": 1, "due": 1, "claimed": 1}
    assert (window["findings"], window["held"], window["late"], window["error"]) == ([], False, 0, None)


def test_case_2_for_people_and_programs(product: Product, world: World) -> None:
    world.put(booking("r1", "2026-09-17T15:01:00Z"))
    product.dispatch(WINDOW).ended(0)
    drained(world)
    world.put(booking("r2", "2026-09-17T15:02:00Z"))
    document = reconcile(product, "--window", WINDOW, "--no-repair").ended(3).document
    assert (document["open"], document["repaired"]) == (1, 0)
    (finding,) = document["windows"][0]["findings"]
    assert set(finding) == FINDING
    assert (finding["kind"], finding["record_id"], finding["state"]) == ("missed", "r2", "open")
    assert drained(world) == []
    done = product.run("reconcile", "--window", WINDOW).ended(0)
    assert "missed" in done.out
    assert "r2" in done.out
    assert "redispatched" in done.out
    (message,) = drained(world)
    assert message["records"] == 1
    assert reconcile(product, "--window", WINDOW).ended(0).document["windows"][0]["findings"] == []
    assert drained(world) == []


def test_the_lookback_takes_every_closed_window(product: Product, world: World, rig: Rig) -> None:
    fill(world, hours_ago(2))
    product.dispatch(hours_ago(2)).ended(0)
    document = reconcile(product, "--lookback", "3h").ended(3).document
    windows = {one["window"]: one["findings"] for one in document["windows"]}
    assert hours_ago(1) in windows
    assert windows[hours_ago(2)] == []
    assert [one["kind"] for one in windows[hours_ago(1)]] == ["window_not_dispatched"]
    assert list(windows) == sorted(windows)
    product.run("dispatch", "--due", schedule__catch_up="5h").ended(0)
    assert reconcile(product, "--lookback", "3h").ended(0).document["open"] == 0
    assert rig.value("SELECT count(*) FROM findings WHERE state = 'open'") == 0


def test_nothing_is_owed_from_before_the_installation(product: Product) -> None:
    document = reconcile(product, "--lookback", "5h", schedule__not_before=hours_ago(2)).ended(3).document
    assert [one["window"] for one in document["windows"]] == [hours_ago(2), hours_ago(1)]


def test_young_windows_are_left_alone(product: Product, world: World) -> None:
    world.put(booking("r1", "2026-09-17T15:01:00Z"))
    product.dispatch(WINDOW).ended(0)
    world.put(booking("r2", "2026-09-17T15:02:00Z"))
    (window,) = reconcile(product, "--window", WINDOW, reconcile__grace="10m").ended(0).document["windows"]
    assert "less than 600 seconds ago" in window["left_alone"]
    assert window["findings"] == []


def test_case_7_a_window_that_is_being_worked_on(product: Product, world: World) -> None:
    window = hours_ago(1)
    fill(world, window)
    with FaultProxy(world.endpoint) as wire:
        outcomes: list[Done] = []
        look = callback(lambda _: outcomes.extend([reconcile(product, "--window", window), lookback(product)]))
        wire.rules.append(Rule(on("SendMessageBatch"), look, times=1))
        product.dispatch(window, endpoint=wire.url, dispatch__lease="60s").ended(0)
    explicit, back = outcomes
    explicit.ended(4)
    assert explicit.document["windows"][0]["left_alone"] == "a run is working on it"
    back.ended(0)
    reconcile(product, "--window", window).ended(0)


def lookback(product: Product) -> Done:
    return reconcile(product, "--lookback", "1h")


def test_a_held_window_and_its_release(product: Product, world: World) -> None:
    key = "reward-dispatch/reward/2026/09/17/15/strange.json"
    world.put(booking("r1", "2026-09-17T15:01:00Z"))
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=b"{}")
    for _ in range(2):
        done = reconcile(product, "--window", WINDOW).ended(5)
        assert done.document["windows"][0]["held"]
        assert "--release-hold" in done.error
    product.dispatch(WINDOW).ended(5)
    assert drained(world) == []
    released = reconcile(product, "--window", WINDOW, "--release-hold", "--reason", "looked").ended(3)
    assert {one["kind"] for one in released.document["windows"][0]["findings"]} == {
        "window_not_dispatched",
        "orphan_object",
    }
    product.dispatch(WINDOW).ended(0)
    assert len(drained(world)) == 1


def test_orphans_are_removed_only_on_request(product: Product, world: World) -> None:
    world.put(booking("r1", "2026-09-17T15:01:00Z"))
    product.dispatch(WINDOW).ended(0)
    key = "reward-dispatch/reward/2026/09/17/15/orphan.json"
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=b"{}")
    reconcile(product, "--window", WINDOW, reconcile__orphan_grace="24h").ended(0)
    assert reconcile(product, "--window", WINDOW).ended(0).document["repaired"] == 1
    assert key in world.objects()
    assert reconcile(product, "--window", WINDOW, "--delete-orphans").ended(0).document["repaired"] == 1
    assert key not in world.objects()
    assert reconcile(product, "--window", WINDOW, "--delete-orphans").ended(0).document["repaired"] == 0


def test_recover_from_objects(product: Product, world: World, rig: Rig) -> None:
    window = hours_ago(2)
    fill(world, window)
    product.dispatch(window).ended(0)
    drained(world)
    rig.tell("TRUNCATE pipelines CASCADE")
    rig.tell("TRUNCATE claims, entries, attempts, open_attempts, payload_parts")
    document = product.run("recover", "--from-objects", "--json").ended(0).document
    assert document["entries"] == 5
    assert [(one["window"], one["held"], one["refused"]) for one in document["windows"]] == [(window, True, [])]
    assert "0" in product.run("recover", "--from-objects").ended(0).out
    product.dispatch(window).ended(5)
    assert drained(world) == []
    reconcile(product, "--window", window, "--release-hold", "--reason", "the queue was lost too").ended(3)
    assert len(drained(world)) == 5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--window", WINDOW, "--lookback", "1h"), "--lookback"),
        (("--window", "2026-09-17T15:30:00Z"), "does not start on the hour"),
        (("--window", "2150-01-01T00:00:00Z"), "has not ended"),
        (("--lookback", "soon"), "'soon'"),
        (("--no-repair", "--delete-orphans"), "exclude"),
        (("--release-hold", "--reason", "x"), "--window"),
    ],
)
def test_words_that_do_not_fit(product: Product, arguments: tuple[str, ...], text: str) -> None:
    done = reconcile(product, *arguments).ended(2)
    assert text in done.error
    assert done.document == {"error": done.error}


def test_recover_says_from_what(product: Product) -> None:
    assert "--from-objects" in product.run("recover").ended(2).error


@pytest.mark.parametrize(("number", "code"), [(15, 143), (2, 130)])
def test_case_20_a_reconcile_is_cancelled(product: Product, world: World, rig: Rig, number: int, code: int) -> None:
    fill(world, hours_ago(1))
    product.dispatch(hours_ago(1)).ended(0)
    drained(world)
    world.put(booking("late", f"{hours_ago(1)[:13]}:30:00Z"))
    with FaultProxy(world.endpoint) as wire:
        running = product.start("reconcile", "--window", hours_ago(1), "--json", endpoint=wire.url)
        wire.rules.append(Rule(on("Query"), callback(lambda _: running.signal(number)), times=1))
        done = running.done().ended(code)
    assert "cancelled" in done.error
    assert drained(world) == []
    until(lambda: rig.value("SELECT lease_until IS NULL FROM windows"), "the lease is given back")
    assert reconcile(product, "--window", hours_ago(1)).ended(0).document["repaired"] == 1
    assert len(drained(world)) == 1
