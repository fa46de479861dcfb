"""`--dry-run` on the command line: what it prints, with which code it ends, and that nothing else comes of it."""

from tests.aws_servers import World, booking
from tests.dry_kit import untouched, windows_of
from tests.fault.windows import drained, fill
from tests.product import RUN_FIELDS, Product
from tests.rig import WINDOW, Rig

OF_THE_MOMENT = {"dry_run", "run_id", "confirmed", "started_at", "finished_at"}
TITLE = "dry run: nothing was written or sent"


def test_a_dispatch(product: Product, world: World, rig: Rig) -> None:
    fill(world, WINDOW)
    world.put(booking("bad", "2026-09-17T15:50:00Z", ShopId=None))
    with untouched(rig):
        dry = product.run("dispatch", "--window", WINDOW, "--dry-run", "--json").ended(3)
        shown = product.run("dispatch", "--window", WINDOW, "--dry-run").ended(3).out
    assert dry.err == ""
    assert set(dry.document) == {*RUN_FIELDS, "dry_run"}
    assert (dry.document["dry_run"], dry.document["run_id"], dry.document["confirmed"]) == (True, None, 0)
    assert (dry.document["claimed"], dry.document["entries"]) == (10, 5)
    assert TITLE in shown
    real = product.dispatch(WINDOW).ended(3).document
    assert {name: real[name] for name in set(RUN_FIELDS) - OF_THE_MOMENT} == {
        name: dry.document[name] for name in set(RUN_FIELDS) - OF_THE_MOMENT
    }


def test_a_reconcile(product: Product, world: World, rig: Rig) -> None:
    product.settings |= {"reconcile.grace": "0s", "reconcile.orphan_grace": "0s"}
    fill(world, WINDOW)
    product.dispatch(WINDOW).ended(0)
    drained(world)
    world.put_many([booking("late", "2026-09-17T15:40:00Z"), booking("bad", "2026-09-17T15:50:00Z", ShopId=None)])
    world.s3.put_object(Bucket=world.bucket, Key="reward-dispatch/reward/2026/09/17/15/orphan", Body=b"{}")
    with untouched(rig):
        dry = product.run("reconcile", "--window", WINDOW, "--dry-run", "--json").ended(3)
        shown = product.run("reconcile", "--window", WINDOW, "--dry-run").ended(3).out
    assert dry.err == ""
    assert set(dry.document) == {"run_id", "windows", "open", "repaired", "dry_run", "would_repair", "would_close"}
    numbers = {name: dry.document[name] for name in ("run_id", "open", "repaired", "would_repair", "would_close")}
    assert numbers == {"run_id": None, "open": 3, "repaired": 0, "would_repair": 2, "would_close": 0}
    assert all(word in shown for word in (TITLE, "redispatched", "tagged", "bad_record"))
    real = product.run("reconcile", "--window", WINDOW, "--json").ended(3).document
    assert windows_of(dry.document) == windows_of(real)
    assert (real["open"], real["repaired"]) == (1, 2)


def test_what_a_real_command_would_refuse(product: Product, world: World, rig: Rig) -> None:
    world.s3.put_object(Bucket=world.bucket, Key="reward-dispatch/reward/2026/09/17/15/strange", Body=b"{}")
    with untouched(rig):
        held = product.run("dispatch", "--window", WINDOW, "--dry-run", "--json").ended(5)
        ahead = product.run("reconcile", "--window", "2150-01-01T00:00:00Z", "--dry-run").ended(2)
    assert (held.document["outcome"], held.document["dry_run"]) == ("held", True)
    assert "objects are already under" in held.error
    assert "has not ended yet" in ahead.error
    rig.run()
    rig.tell(
        "UPDATE windows SET held_at = NULL, held_reason = NULL, lease_run_id = gen_random_uuid(), "
        "lease_until = ledger_now() + interval '1 hour'"
    )
    with untouched(rig):
        product.run("dispatch", "--window", WINDOW, "--dry-run").ended(4)
