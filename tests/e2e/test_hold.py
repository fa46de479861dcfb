"""A window that the ledger knows nothing of, but that has objects: the ledger was lost, or another dispatcher works."""

from tests.aws_servers import World
from tests.fault.windows import check_window, drained, fill, hours_ago
from tests.product import Product
from tests.rig import Rig


def key_of(window: str) -> str:
    return f"reward-dispatch/reward/{window[:13].replace('-', '/').replace('T', '/')}/0123/4567-0.json"


def test_a_window_with_objects_that_nobody_knows_is_held(product: Product, world: World, rig: Rig) -> None:
    held, other = hours_ago(2), hours_ago(1)
    fill(world, held, other)
    world.s3.put_object(Bucket=world.bucket, Key=key_of(held), Body=b"{}")
    for _ in range(2):
        done = product.dispatch(held).ended(5)
        document = done.books(outcome="held", evaluated=0, claimed=0)
        assert document["error"] == done.error
        assert f"dispatch-ledger reconcile --window {held} --release-hold" in done.error
    assert drained(world) == []
    assert list(world.objects()) == [key_of(held)]
    assert rig.rows("SELECT 1 FROM claims") == rig.rows("SELECT 1 FROM entries") == []
    shown = product.run("show", "window", held, "--json").ended(0).document
    assert shown["state"] == "held"
    assert "objects are already under" in shown["held"]
    assert [run["outcome"] for run in shown["runs"]] == ["held", "held"]

    product.dispatch(other).ended(0).books(outcome="completed")
    check_window(rig, other, "staged", drained(world), world.objects())


def test_due_goes_on_past_a_held_window(product: Product, world: World, rig: Rig) -> None:
    windows = [hours_ago(3), hours_ago(2), hours_ago(1)]
    fill(world, *windows)
    world.s3.put_object(Bucket=world.bucket, Key=key_of(windows[1]), Body=b"{}")
    done = product.run("dispatch", "--due", "--json", schedule__catch_up="4h").ended(5)
    outcomes = {run["window"]["start"]: run["outcome"] for run in done.document["runs"]}
    assert [outcomes[window] for window in windows] == ["completed", "held", "completed"]
    messages = drained(world)
    for window in (windows[0], windows[2]):
        check_window(rig, window, "staged", messages, world.objects())
    assert {one["window"]["start"] for one in messages} == {windows[0], windows[2]}
    again = product.run("dispatch", "--due", "--json", schedule__catch_up="4h").ended(5)
    assert outcomes | {run["window"]["start"]: run["outcome"] for run in again.document["runs"]} == outcomes
    assert drained(world) == []


def test_objects_of_another_hour_pipeline_or_prefix_hold_nothing(product: Product, world: World, rig: Rig) -> None:
    window = hours_ago(1)
    fill(world, window)
    key = key_of(window)
    for other in (
        key.replace("/reward/", "/other/"),
        key.replace("reward-dispatch/", ""),
        key_of(hours_ago(2)),
        key.replace("reward/", "reward/_results/", 1),
    ):
        world.s3.put_object(Bucket=world.bucket, Key=other, Body=b"{}")
    product.dispatch(window).ended(0).books(outcome="completed", claimed=10)
    assert len(drained(world)) == 5


def test_its_own_objects_do_not_hold_a_window(product: Product, world: World, rig: Rig) -> None:
    window = hours_ago(1)
    fill(world, window)
    product.dispatch(window).ended(0)
    product.dispatch(window).ended(0).books(outcome="completed", already_claimed=10, claimed=0)
