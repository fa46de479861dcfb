"""`report`, `findings` and `audit`: every number agrees between JSON, CSV, HTML, table and `show window`."""

import csv
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ledger.reports import COUNTS, FINDING_COLUMNS, KINDS, WINDOW_COLUMNS
from ledger.store import Store
from tests import report_kit as kit
from tests.aws_servers import World, booking
from tests.fault.windows import fill
from tests.product import Done, Product
from tests.report_kit import Planter
from tests.rig import WINDOW

A_DAY = ("--from", kit.FROM, "--to", kit.TO)
SUMS = (*COUNTS, "open_findings")


@pytest.fixture
def planter(ledger_url: str) -> Iterator[Planter]:
    with Store(ledger_url) as store:
        yield Planter(store)


@pytest.fixture
def desk(ledger_url: str, tmp_path: Path) -> Product:
    """The command line with a ledger, and no AWS to be seen."""
    return Product(None, ledger_url, tmp_path)


class Page(HTMLParser):
    """Reads a report's page: its table, its text, and whatever could load or run something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.cards: dict[str, str] = {}
        self.tips: list[str] = []
        self.live: list[str] = []
        self._in, self._name = "", ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "img", "iframe", "object", "embed", "a", "base", "form"}:
            self.live.append(tag)
        self.live += [name for name, _ in attributes if name in {"src", "href", "srcset"} or name.startswith("on")]
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag in {"td", "th", "dt", "dd", "title"}:
            self._in = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._in:
            self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in in {"td", "th"}:
            self.rows[-1][-1] += data
        elif self._in == "dt":
            self._name = data
        elif self._in == "dd":
            self.cards[self._name] = data
        elif self._in == "title":
            self.tips.append(data)


def csv_rows(done: Done) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(done.out, newline=""), strict=True))


def report(desk: Product, *arguments: str, **options: Any) -> Any:
    return desk.run("report", *arguments, "--json", **options).ended(0).document


def test_every_number_agrees(desk: Product, planter: Planter) -> None:
    planter.plant()
    planter.plant_findings()
    Planter(planter.store, "other").dispatch(10, (9,))
    document = report(desk, "windows", *A_DAY)
    assert {int(one["window"][11:13]): one["state"] for one in document["windows"]} == kit.STATES
    assert document["totals"] == {name: sum(one[name] for one in document["windows"]) for name in SUMS}
    assert report(desk, "windows", *A_DAY) == document

    given = desk.run("report", "windows", *A_DAY, "--format", "csv").ended(0)
    assert given.err == ""
    rows = csv_rows(given)
    assert list(rows[0]) == list(WINDOW_COLUMNS)
    as_text = [
        {name: "" if value is None else str(value) for name, value in one.items()} for one in document["windows"]
    ]
    assert rows == as_text

    page = Page(desk.run("report", "windows", *A_DAY, "--format", "html").ended(0).out)
    head, *lines, last = page.rows
    assert head == [name.replace("_", " ") for name in WINDOW_COLUMNS]
    for one, line in zip(document["windows"], lines, strict=True):
        cells = dict(zip(WINDOW_COLUMNS, line, strict=True))
        assert cells["window"] == one["window"]
        assert cells["state"] == one["state"].replace("_", " ")
        assert [int(cells[name]) for name in SUMS] == [one[name] for name in SUMS]
    assert [int(cell) for cell in last[2:-2]] == [document["totals"][name] for name in SUMS]
    assert page.cards["Open findings"] == str(document["totals"]["open_findings"])
    assert page.cards["Records"] == str(document["totals"]["records"])
    assert page.cards["Windows"] == str(len(document["windows"]))

    table = desk.run("report", "windows", *A_DAY).ended(0).out
    for one in document["windows"]:
        (line,) = [line for line in table.splitlines() if line.strip().startswith(one["window"])]
        assert [int(cell) for cell in line.split()[2 : 2 + len(SUMS)]] == [one[name] for name in SUMS]
    for one in document["windows"][:3]:
        story = desk.run("show", "window", one["window"], "--json").ended(0).document
        assert story["totals"] == {name: one[name] for name in COUNTS}
        assert (story["state"], story["open_findings"], story["coverage"]) == (
            one["state"], one["open_findings"], one["coverage"],
        )  # fmt: skip
    assert report(desk, "windows", *A_DAY, pipeline="other")["totals"]["records"] == 9


def test_after_a_real_dispatch(product: Product, world: World) -> None:
    """Case 13: not due, set aside, already claimed, retried; and the sums hold."""
    fill(world, WINDOW)
    world.put(booking("bad", f"{WINDOW[:13]}:30:00Z", MemberId=None))
    world.put(booking("gone", f"{WINDOW[:13]}:31:00Z", status="Rewarded"))
    product.dispatch(WINDOW).ended(3)
    product.dispatch(WINDOW).ended(3)
    (one,) = report(product, "windows", *A_DAY)["windows"]
    assert one == {
        "window": WINDOW, "state": "dispatched", "entries": 5, "pending": 0, "sending": 0, "confirmed": 5, "void": 0,
        "records": 10, "open_findings": 1, "verified_at": None, "coverage": None,
    }  # fmt: skip
    assert product.run("audit", "verify", *A_DAY, "--json").ended(0).document["balanced"]
    (bad,) = product.run("findings", "list", "--json").ended(0).document["findings"]
    product.run("findings", "ack", str(bad["id"]), "--reason", "known").ended(0)
    product.dispatch(WINDOW).ended(0)
    assert report(product, "windows", *A_DAY)["totals"]["open_findings"] == 0


@pytest.mark.parametrize("name", ["windows", "duplicates", "missed", "orphans", "findings"])
def test_nothing_in_range(desk: Product, name: str) -> None:
    document = report(desk, name, *A_DAY)
    assert document == ({"windows": [], "totals": dict.fromkeys(SUMS, 0)} if name == "windows" else {"findings": []})
    assert desk.run("report", name, "--format", "csv").ended(0).out.count("\n") == 1
    assert "No window" in (out := desk.run("report", name).ended(0).out) or "none" in out
    page = Page(desk.run("report", name, "--format", "html").ended(0).out)
    assert (page.rows, page.live) == ([], [])


def test_the_ways_to_ask_for_json(desk: Product, planter: Planter) -> None:
    planter.plant()
    answers = [
        desk.run("--json", "report", "windows", *A_DAY),
        desk.run("report", "windows", *A_DAY, "--format", "json"),
        desk.run("report", "windows", *A_DAY, "--format", "json", "--json"),
    ]
    assert len({json.dumps(done.ended(0).document) for done in answers}) == 1
    done = desk.run("report", "windows", "--format", "csv", "--json").ended(2)
    assert done.document == {"error": done.error}


def test_findings_agree_and_are_harmless(desk: Product, planter: Planter) -> None:
    planter.plant_findings()
    document = report(desk, "findings", *A_DAY)
    assert len(document["findings"]) == 4 * len(KINDS)
    assert all(list(one) == list(FINDING_COLUMNS) for one in document["findings"])
    assert {one["record_id"] for one in document["findings"]} == {kit.HOSTILE}

    rows = csv_rows(desk.run("report", "findings", *A_DAY, "--format", "csv").ended(0))
    assert [int(row["id"]) for row in rows] == [one["id"] for one in document["findings"]]
    for row in rows:
        assert row["record_id"].startswith("'=cmd")
        assert json.loads(row["detail"]) == {"said": kit.HOSTILE}
        assert all(cell.isprintable() for cell in row.values())

    html = desk.run("report", "findings", *A_DAY, "--format", "html").ended(0).out
    page = Page(html)
    assert page.live == []
    assert "<script" not in html
    assert [int(row[0]) for row in page.rows[1:]] == [one["id"] for one in document["findings"]]
    assert page.cards == {"Findings": "40", "Open": "10", "Repaired": "10", "Acknowledged": "10", "Closed": "10"}
    assert not re.search(r"https?://|url\(|@import|[\x00-\x08\x0b-\x1f\u202e]", html)

    for command in (("report", "findings", *A_DAY), ("findings", "list", "--state", "all")):
        table = desk.run(*command).ended(0).out
        assert all(char == "\n" or char.isprintable() for char in table)
    for name, kinds in (("duplicates", 1), ("missed", 2), ("orphans", 2)):
        assert len(report(desk, name, *A_DAY)["findings"]) == 4 * kinds


def test_a_record_id_with_a_lone_surrogate(desk: Product, planter: Planter) -> None:
    planter.find(9, "missed", "a", text="\ud800x")
    planter.tell("UPDATE findings SET object_key = NULL, detail = '{}'")
    assert report(desk, "missed", *A_DAY)["findings"][0]["record_id"] == "\ud800x"
    for form in ("csv", "html", "table"):
        assert r"\ud800x" in desk.run("report", "missed", *A_DAY, "--format", form).ended(0).out


def test_the_page_draws_every_hour_and_names_its_state(desk: Product, planter: Planter) -> None:
    planter.plant()
    page = Page(desk.run("report", "windows", *A_DAY, "--format", "html").ended(0).out)
    hours = [tip for tip in page.tips if re.match(r"2026-09-17T\d\d:00:00Z: (nothing|\w+ ?\w*;)", tip)]
    assert len(hours) == 24
    for number, state in kit.STATES.items():
        assert any(tip.startswith(f"{kit.hour(number)}: {state.replace('_', ' ')};") for tip in hours)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "windows", "--from", "yesterday"),
        ("report", "windows", "--from", kit.TO, "--to", kit.FROM),
        ("report", "windows", "--from", "1999-01-01T00:00:00Z", "--to", kit.TO),
        ("report", "missed", "--to", "2026-09-17"),
        ("report", "windows", "--format", "pdf"),
        ("report", "nothing"),
        ("report",),
        ("audit", "verify", "--from", "9999-01-01T00:00:00Z"),
        ("findings", "list", "--kind", "other"),
        ("findings", "list", "--state", "gone"),
        ("findings", "list", "--limit", "0"),
        ("findings", "list", "--limit", "100001"),
        ("findings", "list", "--window", "2026-09-17T15:30:00Z"),
        ("findings", "ack", "1"),
        ("findings", "ack", "1", "--reason", " "),
        ("findings", "ack", "1", "--reason", "seen", "--by", ""),
        ("findings", "ack", "first", "--reason", "seen"),
        ("findings", "ack", "--reason", "seen"),
    ],
)
def test_words_that_make_no_sense(desk: Product, arguments: tuple[str, ...]) -> None:
    done = desk.run(*arguments, "--json").ended(2)
    assert done.document == {"error": done.error}


# Findings


def test_findings_are_listed_by_state_kind_and_window(desk: Product, planter: Planter) -> None:
    planter.plant_findings()
    planter.find(11, "missed", "late")

    def listed(*arguments: str) -> list[dict[str, Any]]:
        return list(desk.run("findings", "list", *arguments, "--json").ended(0).document["findings"])

    assert {one["state"] for one in listed()} == {"open"}
    assert len(listed()) == len(KINDS) + 1
    assert len(listed("--state", "all")) == 4 * len(KINDS) + 1
    assert {one["state"] for one in listed("--state", "repaired")} == {"repaired"}
    assert {one["kind"] for one in listed("--kind", "missed", "--state", "all")} == {"missed"}
    assert [one["window"] for one in listed("--window", kit.hour(11))] == [kit.hour(11)]
    assert desk.run("findings", "list", "--json", pipeline="other").document == {"findings": []}


def test_a_list_says_how_many_were_left_off(desk: Product, planter: Planter) -> None:
    planter.plant_findings()
    done = desk.run("findings", "list", "--limit", "4", "--json").ended(0)
    assert (len(done.document["findings"]), done.document["left_off"], done.err) == (4, 6, "")
    assert "6 older findings" in desk.run("findings", "list", "--limit", "4").ended(0).err
    assert "left_off" not in desk.run("findings", "list", "--json").ended(0).document


def test_acknowledging(desk: Product, planter: Planter) -> None:
    identity = str(planter.find(9, "duplicate", "a", text=kit.HOSTILE))
    done = desk.run("findings", "ack", identity, "--reason", "refunded", "--by", "me", "--json").ended(0)
    assert (done.document["state"], done.document["acknowledged_by"]) == ("acknowledged", "me")
    assert done.document["acknowledged_reason"] == "refunded"
    again = desk.run("findings", "ack", identity, "--reason", "other", "--json").ended(0)
    assert again.document == done.document
    assert "refunded" in desk.run("findings", "ack", identity, "--reason", "other").ended(0).out
    assert desk.run("findings", "list").ended(0).out.strip() == "findings · reward: none."


def test_who_acknowledges_by_default(desk: Product, planter: Planter) -> None:
    identity = str(planter.find(9, "duplicate", "a"))
    done = desk.run("findings", "ack", identity, "--reason", "r", "--json", environ={"LOGNAME": "ops-person"}).ended(0)
    assert done.document["acknowledged_by"] == "ops-person"


def test_what_cannot_be_acknowledged(desk: Product, planter: Planter) -> None:
    assert "no finding 4711" in desk.run("findings", "ack", "4711", "--reason", "r").ended(1).error
    for state in ("closed", "repaired"):
        identity = str(planter.find(9, "duplicate", state, state))
        done = desk.run("findings", "ack", identity, "--reason", "r", "--json").ended(5)
        assert done.document == {"error": done.error}
        assert state in done.error
        desk.run("findings", "ack", identity, "--reason", "r", pipeline="other").ended(1)


# The audit


def test_an_audit_of_a_sound_ledger(desk: Product, planter: Planter) -> None:
    planter.plant()
    done = desk.run("audit", "verify", *A_DAY, "--json").ended(0)
    assert done.document == {
        "windows_checked": len(kit.STATES), "balanced": True, "first_unbalanced": None, "windows": [],
    }  # fmt: skip
    assert "9 of 9 windows balance" in desk.run("audit", "verify", *A_DAY).ended(0).out
    assert desk.run("audit", "verify", "--json").ended(0).document["windows_checked"] == 0


def test_an_audit_names_the_first_window_that_does_not_balance(desk: Product, planter: Planter) -> None:
    planter.plant()
    planter.tell("DELETE FROM claims WHERE record_id = 'late' OR record_id = 'edge'")
    done = desk.run("audit", "verify", *A_DAY, "--json").ended(1)
    document = done.document
    assert not document["balanced"]
    assert [one["window"] for one in document["windows"]] == [kit.hour(15), kit.hour(16)]
    assert document["first_unbalanced"] == document["windows"][0]
    assert document["first_unbalanced"]["checks"][0] == {"check": "claims", "expected": 1, "found": 0}
    assert done.error.startswith(f"window {kit.hour(15)} does not balance: claims expected 1 found 0")
    table = desk.run("audit", "verify", *A_DAY).ended(1)
    assert kit.hour(16) in table.out
    assert table.error == done.error


@pytest.mark.parametrize(
    "command",
    ["report windows", "report duplicates", "report missed", "report orphans", "report findings", "findings list",
     "findings ack", "audit verify"],
)  # fmt: skip
def test_help_shows_an_example(desk: Product, command: str) -> None:
    assert f"Example: dispatch-ledger {command}" in " ".join(desk.run(*command.split(), "--help").ended(0).out.split())
