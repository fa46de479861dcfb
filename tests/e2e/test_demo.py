"""`demo`: the main job embedded, on seven records or on the user's own file, without any configuration."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.product import Product, check_run

PLAIN = {
    "BookingDateUTC": "2026-09-17",
    "RewardStatus": "WaitToReward",
    "ShopId": 1,
    "PromotionEngineId": 3,
    "RewardType": "Point",
    "OrderTime": "2026-09-17T10:00:00Z",
}


@pytest.fixture
def bare(tmp_path: Path) -> Product:
    """The command line, with nothing configured, and no credentials either."""
    return Product(None, None, tmp_path)


NOTHING: dict[str, str | None] = dict.fromkeys(
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION")
)


def plain(identity: str, minute: int, **more: object) -> str:
    time = f"2026-09-17T15:{minute:02d}:00Z"
    return json.dumps({"Id": identity, "BookingTimeUTC": time, "MemberId": minute} | PLAIN | more)


def test_the_seven_for_people(bare: Product, tmp_path: Path) -> None:
    done = bare.run("demo", environ=NOTHING).ended(0)
    assert done.err == ""
    for text in ("R2 → R1", "R3", "R5", "R4", "not due", "RewardECoupon", "2026-09-17T15:00:00Z"):
        assert text in done.out, text
    told = " ".join(done.out.split())
    for text in (
        "R8 is sent by a run that dies", "unfinished · send_unknown repaired (completed) sent by a run that died",
        "R6 is rebooked", "missed · moved_in · R6 repaired (redispatched) it changed after its page was read",
        "R7 is booked", "missed · late_insert · R7 repaired (redispatched) it came after the run was over",
        "of a job is deleted", "missing_object repaired (rebuilt) the job's object was gone",
        "An object that belongs to nobody", "orphan_object repaired (tagged) nobody refers to this object",
        "reconcile · 0 open, 0 repaired",
        "R9 is booked for 15:20 and dispatched: 7 due, 6 of them claimed before, 1 job sent",
        "The next dispatch is held, 0 jobs sent",
        "it was put back to an earlier state", "dispatch-ledger recover --restored", "adopts 1 job from the objects",
        "--as sent (it is in the queue): 1 job taken for sent, 0 jobs to be sent again",
        "The dispatch after that is completed: 7 due, 7 of them claimed before, 0 jobs sent",
        "The queues have got 1 job since", "9 records due and 9 claimed, 0 findings open and 0 repaired",
    ):  # fmt: skip
        assert text in told, text
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_the_seven_for_programs(bare: Product) -> None:
    done = bare.run("demo", "--json", environ=NOTHING).ended(0)
    assert done.err == ""
    document = done.document
    (run,) = document["runs"]
    check_run(run, evaluated=5, not_due=1, due=4, claimed=4, entries=3, confirmed=3, flow="staged", outcome="completed")
    (second,) = document["second_runs"]
    check_run(second, due=4, already_claimed=4, claimed=0, entries=0, outcome="completed")
    assert sorted(job["records"] for job in document["jobs"]) == [["R2", "R1"], ["R3"], ["R5"]]
    assert {one["record_id"] for one in document["left_out"]} == {"R0", "R4", "R6"}
    assert document["records"] == 7
    found = [one for window in document["reconcile"]["windows"] for one in window["findings"]]
    assert sorted((one["kind"], one["cause"], one["record_id"], one["state"], one["repair"]) for one in found) == [
        ("duplicate", "resent", None, "open", None),
        ("missed", "late_insert", "R7", "repaired", "redispatched"),
        ("missed", "moved_in", "R6", "repaired", "redispatched"),
        ("missing_object", None, None, "repaired", "rebuilt"),
        ("orphan_object", None, None, "repaired", "tagged"),
        ("unfinished", "send_unknown", None, "repaired", "completed"),
    ]
    assert (document["second_reconcile"]["open"], document["second_reconcile"]["repaired"]) == (0, 0)
    check_old_ledger(document["old_ledger"])


def check_old_ledger(told: dict[str, Any]) -> None:
    """Check what became of the copy that was put back: nothing is sent twice, and nothing is missing in the end."""
    check_run(told["sent"], due=7, claimed=1, confirmed=1, outcome="completed")
    check_run(told["held"], evaluated=0, claimed=0, confirmed=0, outcome="held")
    assert "was put back to an earlier state" in told["held"]["error"]
    (adopted,) = told["recovered"]["windows"]
    assert (adopted["window"], adopted["entries"], adopted["held"]) == ("2026-09-17T15:00:00Z", 1, True)
    assert (told["decided"]["vouched"], told["decided"]["released"]) == (1, True)
    check_run(told["last"], due=7, already_claimed=7, claimed=0, entries=0, recovered=0, outcome="completed")
    assert told["jobs"] == 1
    assert (told["reconcile"]["open"], told["reconcile"]["repaired"]) == (0, 0)
    coverage = [one["coverage"] for one in told["reconcile"]["windows"]]
    assert [(one["due"], one["claimed"]) for one in coverage] == [(2, 2), (7, 7)]


def test_a_gzipped_export(bare: Product, tmp_path: Path) -> None:
    seven = Path(__file__).parents[2] / "ops" / "seed" / "seven.jsonl"
    (tmp_path / "export.json.gz").write_bytes(gzip.compress(seven.read_bytes()))
    document = bare.run("demo", "export.json.gz", "--json", environ=NOTHING).ended(0).document
    assert document["file"] == "export.json.gz"
    assert "old_ledger" not in document, "trouble is made with records of our own only"
    assert document["records"] == 7
    assert [run["window"]["start"][11:13] for run in document["runs"]] == ["14", "15", "16"]
    assert sum(run["claimed"] for run in document["runs"]) == 6


def test_plain_lines_of_any_kind(bare: Product, tmp_path: Path) -> None:
    digits = "12345678901234567890123456789012345678"
    lines = [
        "\ufeff" + plain("nul", 1, Name="a\0b"),
        "",
        plain("emoji 😀", 2, Name="😀", MemberId="M😀"),
        plain("digits", 3, Amount=1)[:-1] + f', "Big": {digits}, "Small": -0.{"0" * 10}1, "E": 1e3}}',
        plain("typed", 4, Name="\\ud800"),
        plain("bad", 5, ShopId=None),
        plain("twice", 6, Name="first"),
        plain("twice", 6, Name="second"),
        plain("timeless", 7).replace("BookingTimeUTC", "Other"),
    ]
    (tmp_path / "own.jsonl").write_text("\r\n".join(lines), encoding="utf-8")
    done = bare.run("demo", "own.jsonl", "--json", environ=NOTHING).ended(3)
    assert done.err == ""
    document = done.document
    assert document["records"] == 8
    assert document["not_in_index"] == 1
    (run,) = document["runs"]
    check_run(run, evaluated=6, set_aside=1, claimed=5, confirmed=5, outcome="completed")
    assert sorted(record for job in document["jobs"] for record in job["records"]) == [
        "digits", "emoji 😀", "nul", "twice", "typed",
    ]  # fmt: skip


@pytest.mark.parametrize("time", [None, "", 5, {"a": 1}, "2026-09-17 15:00"])
def test_a_line_whose_time_is_no_key_is_left_out_or_named(bare: Product, tmp_path: Path, time: object) -> None:
    """DynamoDB refuses such an item, so it must not take the whole file down with it."""
    lines = [plain("good", 1), plain("odd", 2, BookingTimeUTC=time)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    done = bare.run("demo", "own.jsonl", "--json", environ=NOTHING)
    if done.code == 2:
        assert "own.jsonl" in done.error
        assert "2" in done.error
    else:
        assert done.ended(0).document["jobs"][0]["records"] == ["good"]


def test_plain_lines_for_people(bare: Product, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(
        plain("\x1b[31mred", 1, MemberId="\x1b]0;title\x07") + "\n" + plain("[bold]x", 2)
    )
    done = bare.run("demo", "own.jsonl", environ=NOTHING).ended(0)
    assert "\x1b" not in done.out
    assert "[bold]x" in done.out


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        (plain("a", 1).encode() + b"\n{", ("own.jsonl", "line 2", "not JSON")),
        (b"[1, 2]", ("line 1", "JSON object")),
        (b'{"Id": "\xff"}', ("line 1", "UTF-8")),
        (b'{"Item": {"Id": {"Q": "x"}}}', ("line 1", "'Id'", "DynamoDB JSON")),
        (b'{"Id": NaN}', ("line 1", "NaN")),
        (('{"Id": "x", "N": ' + "1" * 39 + "}").encode(), ("line 1", "38 digits")),
        (b'{"Name": "no key"}', ("Id", "--key", "Name")),
        (b"", ("own.jsonl", "no record")),
        (b"\n\n", ("own.jsonl", "no record")),
        (b"\x1f\x8b\x08broken", ("own.jsonl", "cannot be read")),
        (b'{"Id": "x", "Deep": ' + b"[" * 100_000, ("line 1",)),
    ],
)
def test_a_bad_file(bare: Product, tmp_path: Path, raw: bytes, texts: tuple[str, ...]) -> None:
    (tmp_path / "own.jsonl").write_bytes(raw)
    done = bare.run("demo", "own.jsonl", "--json", environ=NOTHING).ended(2)
    assert done.document == {"error": done.error}
    for text in texts:
        assert text in done.error, done.error


def test_a_file_that_is_not_there(bare: Product, tmp_path: Path) -> None:
    assert "nowhere.jsonl" in bare.run("demo", "nowhere.jsonl").ended(2).error
    assert bare.run("demo", str(tmp_path)).ended(2).error


def test_another_key(bare: Product, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(plain("a", 1).replace('"Id"', '"Number"'))
    document = bare.run("demo", "own.jsonl", "--key", "Number", "--json", environ=NOTHING).ended(0).document
    assert [job["records"] for job in document["jobs"]] == [["a"]]
