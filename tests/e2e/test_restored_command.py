"""The command line for a ledger that was put back: held, adopted, decided about and released, with who and why."""

from typing import Any

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import drained, fill, hours_ago
from tests.product import Product
from tests.rig import Rig


@pytest.fixture
def window() -> str:
    return hours_ago(2)


@pytest.fixture
def forgotten(product: Product, world: World, rig: Rig, window: str) -> list[Any]:
    """A window of which half was sent after the copy that is in the ledger's place now; gives the messages."""
    world.put(booking("r1", f"{window[:13]}:05:00Z", member=1))
    product.dispatch(window).ended(0)
    copy = rig.back_up()
    world.put(booking("r2", f"{window[:13]}:15:00Z", member=2))
    product.dispatch(window).ended(0)
    sent = drained(world)
    rig.put_back(copy)
    return sent


def test_from_the_first_look_to_the_last_word(
    product: Product, world: World, rig: Rig, window: str, forgotten: list[Any]
) -> None:
    held = product.dispatch(window).ended(5)
    assert held.books(outcome="held", evaluated=0)["error"] == held.error
    assert "was put back to an earlier state" in held.error
    assert "dispatch-ledger recover --restored" in held.error
    product.run("reconcile", "--window", window, "--json").ended(5)
    refused = product.run("reconcile", "--window", window, "--release-hold", "--reason", "looks fine").ended(5)
    assert "recover --restored" in refused.error
    checks = {one["name"]: one for one in product.run("doctor", "--json").ended(2).document["checks"]}
    assert checks["witness"]["state"] == "failed"
    assert window in checks["witness"]["detail"]

    adopted = product.run("recover", "--restored", "--json").ended(0).document
    assert [(one["window"], one["entries"], one["held"]) for one in adopted["windows"]] == [(window, 1, True)]
    assert f"--restored --window {window} --as sent" in product.dispatch(window).ended(5).error
    word = ("--restored", "--window", window, "--as", "sent", "--reason", "all in the queue", "--by", "ann")
    decided = product.run("recover", *word, "--json").ended(0).document
    assert (decided["vouched"], decided["released"]) == (1, True)
    world.put(booking("r3", f"{window[:13]}:25:00Z", member=3))
    product.dispatch(window).ended(0).books(claimed=1, already_claimed=2)
    assert len(drained(world)) == 1
    assert product.run("doctor", "--json").document["failed"] == 0

    story = product.run("show", "window", window, "--json").ended(0).document
    decisions = [(one["event"], one.get("by"), one["reason"]) for one in story["events"] if "reason" in one]
    assert [event for event, *_ in decisions] == [
        "window held", "objects adopted", "adopted jobs vouched for", "window released",
    ]  # fmt: skip
    assert decisions[-1] == ("window released", "ann", "all in the queue")
    assert (story["held"], story["held_kind"]) == (None, None)
    assert story["seq"] == world.witnesses()[f"reward-dispatch/_ledger/reward/{window}.json"]["seq"]
    text = product.run("show", "window", window).ended(0).out
    assert "all in the queue" in text


def test_unknown_is_sent_again_and_reported(
    product: Product, world: World, rig: Rig, window: str, forgotten: list[Any]
) -> None:
    shown = product.run("recover", "--restored").ended(0).out
    assert window in shown
    assert "suspected" in shown
    assert "was put back to an earlier state" in " ".join(shown.split()), "it says why it looked at the window"
    told = product.run("recover", "--restored", "--window", window, "--as", "unknown", "--reason", "x").ended(0).out
    assert told.startswith(f"window {window} is released, its adopted jobs count as unknown\n"), "on one line"
    assert "to be sent again" in told
    product.dispatch(window).ended(3).books(recovered=1)
    assert {one["idempotency_key"] for one in drained(world)} < {one["idempotency_key"] for one in forgotten}


def test_most_were_sent_and_one_never_arrived(
    product: Product, world: World, rig: Rig, window: str, forgotten: list[Any]
) -> None:
    """A person's word for all of them, then a redo of the one: it counts as worked, and must be asked for."""
    word = ("--restored", "--window", window, "--as", "sent", "--reason", "all but r2")
    product.run("recover", *word).ended(0)
    plan = ("redo", "plan", "--window", window, "--record", "r2", "--reason", "never arrived", "--json")
    left_out = product.run(*plan).ended(0)
    assert (left_out.document["records"], left_out.document["already_worked"]) == (0, 1)
    assert "--include-worked" in left_out.err
    made = product.run(*plan, "--include-worked").ended(0)
    assert (made.err, made.document["records"]) == ("", 1)
    product.run("redo", "apply", made.document["plan_id"]).ended(0)
    (message,) = drained(world)
    assert (message["generation"], message["records"]) == (1, 1)
    assert rig.value("SELECT count(*) FROM receipts WHERE state = 'superseded'") == 1, "the lost one may still turn up"
    rig.assert_books_balance()


def test_a_second_ledger_is_told_of_by_the_doctor(
    product: Product, world: World, rig: Rig, window: str, empty_database: str
) -> None:
    fill(world, window)
    product.dispatch(window).ended(0)
    other = {"ledger__database_url": empty_database}
    product.run("db", "upgrade", **other).ended(0)
    checks = {one["name"]: one for one in product.run("doctor", "--json", **other).ended(2).document["checks"]}
    assert "another ledger" in checks["witness"]["detail"]
    assert "let only one go on" in checks["witness"]["mend"]
    assert "another ledger" in product.dispatch(window, **other).ended(5).error
    assert len(drained(world)) == 5


def test_what_a_person_holds(product: Product, world: World, rig: Rig, window: str) -> None:
    fill(world, window)
    assert product.run("hold", "--window", window, "--reason", "a backup", "--json").ended(0).document["windows"] == [
        {"window": window, "held": True, "new": True}
    ]
    assert "1 was before" in product.run("hold", "--window", window, "--reason", "again").ended(0).out
    assert "a backup" in product.dispatch(window).ended(5).error
    product.run("dispatch", "--due", schedule__not_before=window, schedule__catch_up="3h").ended(5)
    assert not any(one["window"]["start"] == window for one in drained(world))
    product.run("recover", "--restored", "--json").ended(0)
    word = ("--restored", "--window", window, "--as", "sent", "--reason", "x")
    assert "--release-hold" in product.run("recover", *word).ended(5).error
    release = ("--window", window, "--release-hold", "--reason", "looked")
    product.run("reconcile", *release, reconcile__grace="0s").ended(3)
    product.dispatch(window).ended(0).books(claimed=10)


def test_all_windows_are_held_and_released_at_once(product: Product, world: World, rig: Rig) -> None:
    old = "2026-09-17T15:00:00Z"
    world.put(booking("r1", "2026-09-17T15:05:00Z"))
    product.dispatch(old).ended(0)
    document = product.run("hold", "--all", "--reason", "look first", "--by", "ann", "--json").ended(0).document
    names = [one["window"] for one in document["windows"]]
    assert {old, hours_ago(0), hours_ago(1), hours_ago(24 * 7 - 1)} <= set(names)
    assert document["by"] == "ann"
    product.dispatch(old).ended(5)
    due = product.run("dispatch", "--due", "--json", schedule__catch_up="3h").ended(5).document
    assert {run["outcome"] for run in due["runs"]} == {"held"}
    product.run("reconcile", "--lookback", "3h", "--release-hold", "--reason", "fine", reconcile__grace="0s").ended(3)
    held = rig.value("SELECT count(*) FROM windows WHERE held_at IS NOT NULL")
    assert held == len(names) - 2, "those of the lookback go on, as far as they have ended"
    assert rig.value("SELECT count(*) FROM events WHERE event = 'released'") == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("hold", "--reason", "x"), "--all"),
        (("hold", "--all", "--window", "2026-09-17T15:00:00Z", "--reason", "x"), "--all"),
        (("hold", "--all"), "--reason"),
        (("hold", "--all", "--reason", " "), "--reason"),
        (("hold", "--window", "soon", "--reason", "x"), "soon"),
        (("recover",), "--restored"),
        (("recover", "--restored", "--from-objects"), "--restored"),
        (("recover", "--from-objects", "--as", "sent"), "--restored"),
        (("recover", "--restored", "--as", "sent", "--reason", "x"), "--window"),
        (("recover", "--restored", "--window", "2026-09-17T15:00:00Z", "--as", "sent"), "--reason"),
        (("recover", "--restored", "--window", "2026-09-17T15:00:00Z", "--as", "maybe", "--reason", "x"), "maybe"),
        (("recover", "--restored", "--reason", "x"), "--window"),
        (("reconcile", "--window", "2026-09-17T15:00:00Z", "--release-hold"), "--reason"),
        (("reconcile", "--window", "2026-09-17T15:00:00Z", "--reason", "x"), "--release-hold"),
        (("reconcile", "--window", "2026-09-17T15:00:00Z", "--release-hold", "--reason", ""), "--reason"),
    ],
)
def test_words_that_do_not_fit(product: Product, arguments: tuple[str, ...], text: str) -> None:
    done = product.run(*arguments, "--json").ended(2)
    assert text in done.error
    assert done.document == {"error": done.error}


def test_a_window_that_nothing_is_wrong_with(product: Product, world: World, rig: Rig, window: str) -> None:
    fill(world, window)
    product.dispatch(window).ended(0)
    word = ("--restored", "--window", window, "--as", "sent", "--reason", "x")
    assert product.run("recover", *word, "--json").ended(0).document["released"] is False
    assert "The ledger knows all" in product.run("recover", "--restored").ended(0).out
