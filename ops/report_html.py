"""A report as one HTML file: no scripts, nothing loaded from elsewhere, light or dark as the reader's system is."""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from ledger.instants import HOUR_S, format_time, parse_instant
from ledger.reports import (
    COUNTS,
    FINDING_STATES,
    STATES,
    WINDOW_COLUMNS,
    About,
    FindingsReport,
    Tally,
    WindowsReport,
)
from ops import report_charts as charts
from ops.report_charts import number, text

Row = dict[str, Any]
# A page with more rows is of no use to a reader; the CSV has them all.
ROWS_MAX = 2000
# What wants a look, worst first.
_ODD_STATES = ("held", "not_dispatched", "incomplete")
_ENTRY_STATES = ("confirmed", "sending", "pending", "void")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_TITLES = {
    "duplicates": "Possible duplicates",
    "missed": "Missed records and windows",
    "orphans": "Orphan and missing objects",
    "findings": "Findings",
}
_NUMBERS = {*COUNTS, "open_findings", "coverage"}
_ABOUT = (("record", "record_id"), ("entry", "entry_id"), ("object", "object_key"))


def windows_page(report: WindowsReport) -> str:
    """Return `report windows` as a page."""
    parts = [_verdict(*_windows_verdict(report))]
    if report.windows:
        parts += [
            _window_cards(report),
            _pictures(report),
            _findings_by_kind(report.tally),
            _windows_table(report),
        ]
    return _page("Windows", report.about, parts)


def findings_page(name: str, report: FindingsReport) -> str:
    """Return one of the reports about findings as a page."""
    parts = [_verdict(*_findings_verdict(report.tally))]
    if report.tally:
        parts += [_finding_cards(report.tally), _findings_by_kind(report.tally), _findings_table(report)]
    return _page(_TITLES[name], report.about, parts)


def _page(title: str, about: About, parts: Iterable[str]) -> str:
    style = files("ops").joinpath("templates", "report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{text(title)} · {text(about.pipeline)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<header><p class="eyebrow">dispatch-ledger · {text(about.pipeline)}</p><h1>{text(title)}</h1>'
        f'<p class="range"><span>{about.span.first} to {about.span.end}</span>'
        f"<span>generated at {format_time(about.generated_at.replace(microsecond=0))}</span></p></header>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


# At a glance


def _verdict(mood: str, words: str) -> str:
    return f'<p class="verdict {mood}">{text(words)}</p>'


def _windows_verdict(report: WindowsReport) -> tuple[str, str]:
    """Return the mood and the words that sum a report up: the worst first."""
    if not report.windows:
        return "calm", "No window of this range is in the ledger."
    states = _count_states(report.windows)
    odd = {state: states[state] for state in _ODD_STATES if states[state]}
    named = ", ".join(f"{number(count)} {state.replace('_', ' ')}" for state, count in odd.items())
    counted = (
        (sum(odd.values()), "bad", f"{_some(sum(odd.values()), 'window')} to look at: {named}."),
        (unknown_hours(report), "warn", f"{_some(unknown_hours(report), 'hour')} not in the ledger."),
        (report.totals["open_findings"], "warn", f"{_some(report.totals['open_findings'], 'finding')} open."),
    )
    said = [(mood, words) for count, mood, words in counted if count]
    calm = f"{number(states['dispatched'])} of {_some(len(report.windows), 'window')} dispatched, nothing open."
    running = [f"{_some(states['running'], 'window')} being worked on."] if states["running"] else []
    return said[0][0] if said else "good", " ".join([words for _, words in said] or [calm, *running])


def unknown_hours(report: WindowsReport) -> int:
    """Count closed hours of the range that the ledger does not know, from the first that it knows on."""
    starts = {parse_instant(one["window"])[0] for one in report.windows}
    end_s = min(report.about.span.end_s + HOUR_S - 1, int(report.about.generated_at.timestamp()))
    return sum(start_s not in starts for start_s in range(min(starts), end_s - HOUR_S + 1, HOUR_S)) if starts else 0


def _some(count: int, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def _findings_verdict(tally: Tally) -> tuple[str, str]:
    opened = _by_state(tally)["open"]
    if not tally:
        return "good", "Nothing was found in this range."
    return ("warn", f"{_some(opened, 'finding')} open.") if opened else ("good", "Nothing is open.")


def _count_states(windows: Sequence[Row]) -> dict[str, int]:
    return {state: sum(one["state"] == state for one in windows) for state in STATES}


def _by_state(tally: Tally) -> dict[str, int]:
    return {state: sum(count for (_, has), count in tally.items() if has == state) for state in FINDING_STATES}


def _card(name: str, value: str, below: str = "", mood: str = "") -> str:
    return f'<div class="card {mood}"><dt>{text(name)}</dt><dd>{text(value)}</dd><p>{text(below)}</p></div>'


def _cards(cards: Iterable[str]) -> str:
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _window_cards(report: WindowsReport) -> str:
    totals, states = report.totals, _count_states(report.windows)
    verified = [one["coverage"] for one in report.windows if one["coverage"] is not None]
    lowest = f"lowest {_percent(min(verified))}" if verified else "no window verified yet"
    unfinished = totals["pending"] + totals["sending"]
    begun = f"{number(totals['pending'])} pending, {number(totals['sending'])} sending"
    opened = totals["open_findings"]
    return _cards(
        [
            _card("Windows", number(len(report.windows)), f"{number(states['dispatched'])} dispatched"),
            _card("Records", number(totals["records"]), "in entries not void"),
            _card("Entries", number(totals["entries"]), f"{number(totals['confirmed'])} confirmed"),
            _card("Unfinished", number(unfinished), begun, "warn" if unfinished else ""),
            _card("Void", number(totals["void"]), "not sent, claims free"),
            _card("Open findings", number(opened), "of these windows", "bad" if opened else ""),
            _card("Verified", number(len(verified)), lowest),
        ]
    )


def _finding_cards(tally: Tally) -> str:
    states = _by_state(tally)
    moods = {"open": "bad"}
    shown = [_card(name.capitalize(), number(n), "", moods.get(name, "") if n else "") for name, n in states.items()]
    return _cards([_card("Findings", number(sum(states.values()))), *shown])


def _percent(coverage: float) -> str:
    return f"{coverage * 100:.4f}".rstrip("0").rstrip(".") + "%"


# Pictures


def _panel(title: str, *parts: str) -> str:
    return f'<section class="panel"><h2>{text(title)}</h2>{"".join(parts)}</section>'


def _pictures(report: WindowsReport) -> str:
    windows = [one | {"start_s": parse_instant(one["window"])[0]} for one in report.windows]
    span = charts.trimmed(report.about.span, windows)
    note = "" if len(charts.drawn_days(span, windows)) < charts.DAYS_MAX else _note("The newest days are drawn.")
    entries = charts.group_bars(span, windows, _ENTRY_STATES)
    records = charts.group_bars(span, windows, ("records",))
    each = charts.how_long(entries.bucket_s)
    return "\n".join(
        [
            _panel("Hour by hour", charts.legend((*STATES, "none")), charts.heat(span, windows), note),
            _panel(f"Records by {each}", charts.bars(records)),
            _panel(f"Entries by {each}", charts.legend(_ENTRY_STATES), charts.bars(entries)),
        ]
    )


def _findings_by_kind(tally: Tally) -> str:
    if not tally:
        return _panel("Findings by kind", _note("No findings in this range."))
    return _panel("Findings by kind", charts.legend(FINDING_STATES), charts.kinds(tally, FINDING_STATES))


def _note(words: str) -> str:
    return f'<p class="note">{text(words)}</p>'


# Tables


def _windows_table(report: WindowsReport) -> str:
    rows = [_window_row(one) for one in report.windows[-ROWS_MAX:]]
    totals = {"window": "total", "state": None, "verified_at": None, "coverage": None, **report.totals}
    heads = [(name.replace("_", " "), name in _NUMBERS) for name in WINDOW_COLUMNS]
    more = _more(len(report.windows) - len(rows))
    return _panel("Windows", _table(heads, rows, f"<tfoot>{_window_row(totals)}</tfoot>"), more)


def _window_row(row: Row) -> str:
    return f"<tr>{''.join(_window_cell(name, row[name]) for name in WINDOW_COLUMNS)}</tr>"


def _window_cell(name: str, value: Any) -> str:
    if value is None:
        return f'<td class="{"number " if name in _NUMBERS else ""}zero">&ndash;</td>'
    if name == "state":
        return f"<td>{_badge(value)}</td>"
    if name in _NUMBERS:
        quiet = "zero" if not value else "alarm" if name == "open_findings" else ""
        shown = _percent(value) if name == "coverage" else number(value)
        return f'<td class="number {quiet}">{shown}</td>'
    return f"<td>{_time(value) if name == 'verified_at' else text(value)}</td>"


def _findings_table(report: FindingsReport) -> str:
    rows = [_finding_row(one) for one in report.findings[:ROWS_MAX]]
    heads = [("id", True), *((name, False) for name in ("kind", "window", "about", "state", "first seen", "detail"))]
    return _panel("Findings", _table(heads, rows), _more(sum(report.tally.values()) - len(rows)))


def _finding_row(one: Row) -> str:
    about = [_line(name, one[key]) for name, key in _ABOUT if one[key] is not None]
    cells = [
        f'<td class="number">{one["id"]}</td>',
        f"<td>{text(one['kind'])}{_line('cause', one['cause'])}</td>",
        f"<td>{text(one['window'])}</td>",
        f'<td class="wrapped">{"".join(about)}</td>',
        f"<td>{_badge(one['state'])}{_line('repair', one['repair'])}</td>",
        f"<td>{_time(one['first_seen_at'])}</td>",
        f'<td class="wrapped"><code>{text(bytes(one["detail"]).decode())}</code></td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _line(name: str, value: object) -> str:
    return "" if value is None else f'<p class="line"><span>{name}</span> {text(value)}</p>'


def _badge(state: str) -> str:
    return f'<span class="badge"><i class="swatch {text(state)}"></i>{text(state.replace("_", " "))}</span>'


def _time(value: str) -> str:
    """Show a time to the second, and all of it to who points at it."""
    return f'<time title="{text(value)}">{text(value.partition(".")[0].rstrip("Z"))}Z</time>'


def _more(older: int) -> str:
    return _note(f"{_some(older, 'older row')} not shown here; the CSV has more.") if older else ""


def _table(heads: Iterable[tuple[str, bool]], rows: Iterable[str], foot: str = "") -> str:
    cells = "".join(f'<th scope="col"{" class=number" if right else ""}>{name}</th>' for name, right in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody>{foot}</table></div>'
    )
