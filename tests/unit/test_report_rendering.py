"""Reports as CSV and as pictures: what a spreadsheet or a browser gets, whatever stands in the ledger."""

import csv
import io
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.instants import DAY_S, HOUR_S, format_s
from ledger.reports import COUNTS, FINDING_COLUMNS, About, FindingsReport, WindowsReport
from ledger.spans import Span
from ops import report_charts as charts
from ops import report_html, reports

DAY = 20_000 * DAY_S


def about(days: int = 7, generated_s: int = DAY + 3 * HOUR_S) -> About:
    return About("reward", Span(DAY, DAY + days * DAY_S), datetime.fromtimestamp(generated_s, UTC))


def window(start_s: int, **values: Any) -> dict[str, Any]:
    numbers = dict.fromkeys((*COUNTS, "open_findings"), 0)
    return (
        {"window": format_s(start_s), "state": "dispatched", "verified_at": None, "coverage": None} | numbers | values
    )


def finding(**values: Any) -> dict[str, Any]:
    blank = dict.fromkeys(FINDING_COLUMNS)
    known = {"id": 1, "kind": "missed", "state": "open", "window": format_s(DAY), "first_seen_at": format_s(DAY)}
    return blank | known | {"detail": msgspec.Raw(b"{}")} | values


# CSV


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_text_that_begins_like_a_formula_is_text(first: str) -> None:
    assert reports.csv_cell(f"{first}1+1").startswith("'")


@pytest.mark.parametrize(
    ("value", "cell"),
    [(None, ""), (-1, "-1"), (0.999999, "0.999999"), ("R1", "R1"), ("a=b", "a=b"), ("a\x1b\nb", r"a\x1b\nb"),
     (msgspec.Raw(b'{"a":1}'), '{"a":1}'), ("\ud800", r"\ud800")],
)  # fmt: skip
def test_other_values_are_as_they_are(value: object, cell: str) -> None:
    assert reports.csv_cell(value) == cell


@given(st.text(st.characters(codec=None, categories=None), max_size=30))
def test_whatever_the_text_the_csv_is_whole_and_harmless(text: str) -> None:
    report = FindingsReport(about(), [finding(record_id=text)], {("missed", "open"): 1})
    given_csv = reports.findings_csv(report)
    given_csv.encode()
    assert given_csv.endswith("\r\n")
    assert "\n" not in given_csv.replace("\r\n", "")
    head, row = csv.reader(io.StringIO(given_csv, newline=""), strict=True)
    cell = dict(zip(head, row, strict=True))["record_id"]
    assert cell.isprintable()
    assert not cell.startswith(("=", "+", "-", "@"))


# HTML


@given(st.text(st.characters(codec=None, categories=None), max_size=30))
def test_whatever_the_text_the_page_is_whole_and_harmless(text: str) -> None:
    hostile = finding(record_id=text, object_key=text, cause=text, detail=msgspec.Raw(b'"<b>&"'))
    html = report_html.findings_page("findings", FindingsReport(about(), [hostile], {("missed", "open"): 1}))
    html.encode()
    calm = report_html.findings_page(
        "findings", FindingsReport(about(), [finding(record_id="", object_key="", cause="")], {("missed", "open"): 1})
    )
    assert html.count("<") == calm.count("<")
    assert html.count(">") == calm.count(">")
    assert html.count('"') == calm.count('"')


def verdict(windows: list[dict[str, Any]], made: About) -> str:
    said = re.search(r'<p class="verdict (.*)</p>', report_html.windows_page(WindowsReport(made, windows, {})))
    assert said
    return said[1].replace('">', ": ")


def test_a_page_says_at_once_how_things_are() -> None:
    good = [window(DAY + n * HOUR_S) for n in range(3)]
    assert verdict(good, about()) == "good: 3 of 3 windows dispatched, nothing open."
    odd = [window(DAY), window(DAY + HOUR_S, state="held"), window(DAY + 2 * HOUR_S, state="running", open_findings=2)]
    assert verdict(odd, about()) == "bad: 1 window to look at: 1 held. 2 findings open."
    running = [*good[:2], window(DAY + 2 * HOUR_S, state="running")]
    assert verdict(running, about()) == "good: 2 of 3 windows dispatched, nothing open. 1 window being worked on."
    assert verdict([], about()) == "calm: No window of this range is in the ledger."


@pytest.mark.parametrize(
    ("known", "generated_h", "unknown"),
    [
        ((0, 1, 2), 3, 0),
        ((0, 1, 2), 3.99, 0),  # the hour under way is not owed yet
        ((0, 1, 2), 4, 1),
        ((0, 2), 3, 1),
        ((2,), 3, 0),  # before its first window the ledger was not there
        ((0, 1, 2), 30, 21),  # the range ends after a day
        ((0,), -5, 0),
    ],
)
def test_hours_that_the_ledger_should_know(known: tuple[int, ...], generated_h: float, unknown: int) -> None:
    made = about(1, DAY + int(generated_h * HOUR_S))
    report = WindowsReport(made, [window(DAY + n * HOUR_S) for n in known], {})
    assert report_html.unknown_hours(report) == unknown


def test_a_page_of_ten_years_stays_small() -> None:
    windows = [window(DAY + n * HOUR_S, records=n % 7, entries=1, confirmed=1) for n in range(3653 * 24)]
    html = report_html.windows_page(WindowsReport(about(3653), windows, {}))
    assert len(html) < 3_000_000
    assert "85,672 older rows not shown here" in html
    assert html.count("<tr>") == report_html.ROWS_MAX + 2


# Pictures


@given(st.integers(0, 10**12))
def test_the_axis_ends_just_above_the_highest_bar(highest: int) -> None:
    top = charts.nice_top(highest)
    assert top >= highest
    assert top % 2 == 0
    assert top <= max(2, highest * 2)


@given(st.integers(0, 5000), st.integers(1, 3653 * 24), st.data())
def test_bars_add_up_to_what_they_are_made_of(offset: int, hours: int, data: st.DataObject) -> None:
    span = Span(DAY + offset, DAY + offset + hours * HOUR_S)
    first = -(-span.first_s // HOUR_S) * HOUR_S
    starts = (
        data.draw(st.lists(st.integers(0, (span.end_s - 1 - first) // HOUR_S), max_size=20))
        if first < span.end_s
        else []
    )
    windows = [{"start_s": first + n * HOUR_S, "records": n + 1} for n in starts]
    bars = charts.group_bars(span, windows, ("records",))
    assert len(bars.sums) <= 200
    assert sum(one["records"] for one in bars.sums) == sum(one["records"] for one in windows)
    assert "<svg" in charts.bars(bars)


@pytest.mark.parametrize(("days", "drawn"), [(1, 1), (7, 7), (120, 120), (121, 2), (3653, 2)])
def test_days_that_are_drawn(days: int, drawn: int) -> None:
    windows = [{"start_s": DAY}, {"start_s": DAY + 5 * DAY_S}]
    assert len(charts.drawn_days(about(days).span, windows)) == drawn


def test_a_long_range_is_drawn_from_its_first_window_to_its_last() -> None:
    windows = [{"start_s": DAY + 50 * DAY_S + HOUR_S}, {"start_s": DAY + 52 * DAY_S}]
    assert charts.trimmed(about(300).span, windows) == Span(DAY + 50 * DAY_S, DAY + 53 * DAY_S)
    assert charts.trimmed(about(7).span, windows[:0]) == about(7).span


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (200, "200"), (1000, "1k"), (1500, "1.5k"), (3 * 10**6, "3M")])
def test_counts_on_an_axis(value: int, text: str) -> None:
    assert charts.short(value) == text
