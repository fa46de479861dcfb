"""Pictures for the HTML report, as inline SVG: hours by day, bars over time, findings by kind. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ledger.instants import DAY_S, HOUR_S, format_s
from ledger.spans import Span
from ops.views import plain_text

Row = dict[str, Any]
# A picture of more days than this is no picture; the newest are drawn.
DAYS_MAX = 120
_SHORT_S = 31 * DAY_S
_BARS_MAX = 200
_BUCKETS_S = (HOUR_S, 3 * HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S, 30 * DAY_S)
# Not by colour alone: a state that wants a look also carries a sign.
_SIGNS = {"incomplete": "!", "not_dispatched": "\u00d7", "held": "\u2016", "running": "\u25b8"}
_NAMES = {"not_dispatched": "not dispatched", "none": "not in the ledger"}
# Sizes in pixels; all pictures are as wide as a panel of the page.
_WIDE = 1028
_LEFT, _CELL, _HIGH, _GAP = 92, 39, 26, 3
_TALL, _AXIS, _FOOT = 170, 44, 24
_LABEL, _BAR_HIGH = 180, 28


def text(value: object) -> str:
    """Return a value as text that is safe in HTML, with control characters made visible."""
    return escape(plain_text(value), quote=True)


def number(value: float) -> str:
    """Return a count with separators."""
    return f"{value:,}"


def short(value: int) -> str:
    """Return a round count in few characters: 4, 200, 40k, 1.5M."""
    for size, sign in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return str(value)


def legend(states: Iterable[str]) -> str:
    """Return the key to the colours."""
    items = (f'<span><i class="swatch {state}"></i>{_NAMES.get(state, state)}</span>' for state in states)
    return f'<p class="legend">{"".join(items)}</p>'


def _svg(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{text(label)}">{"".join(parts)}</svg></div>'
    )


def _label(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text(words)}</text>'


# Hours by day


def trimmed(span: Span, windows: Sequence[Row]) -> Span:
    """Return a range as it is drawn: a long one without the days before its first window and after its last."""
    if span.end_s - span.first_s <= _SHORT_S or not windows:
        return span
    last_s = windows[-1]["start_s"] // DAY_S * DAY_S + DAY_S
    return Span(max(span.first_s, windows[0]["start_s"] // DAY_S * DAY_S), min(span.end_s, last_s))


def drawn_days(span: Span, windows: Sequence[Row]) -> list[int]:
    """Return the first seconds of the days to draw, oldest first: all of a short range, else those with windows."""
    first, last = span.first_s // DAY_S, (span.end_s - 1) // DAY_S
    days = range(first, last + 1)
    if len(days) > DAYS_MAX:
        seen = {one["start_s"] // DAY_S for one in windows}
        return [day * DAY_S for day in sorted(seen)[-DAYS_MAX:]]
    return [day * DAY_S for day in days]


def heat(span: Span, windows: Sequence[Row]) -> str:
    """Draw a row a day and a cell an hour, coloured by the window's state; a dot where findings are open."""
    by_start = {one["start_s"]: one for one in windows}
    days = drawn_days(span, windows)
    hours = [_label(_LEFT + hour * _CELL + (_CELL - _GAP) / 2, 12, f"{hour:02d}", "middle") for hour in range(24)]
    rows = [_day(span, day_s, 20 + place * (_HIGH + _GAP), by_start) for place, day_s in enumerate(days)]
    height = 20 + len(days) * (_HIGH + _GAP)
    return _svg(_LEFT + 24 * _CELL, height, "the state of each window, a row a day, a cell an hour", [*hours, *rows])


def _day(span: Span, day_s: int, y: int, by_start: Mapping[int, Row]) -> str:
    cells = [_label(0, y + 16, format_s(day_s)[:10])]
    for hour in range(24):
        start_s = day_s + hour * HOUR_S
        if span.first_s <= start_s < span.end_s:
            cells.append(_cell(_LEFT + hour * _CELL, y, start_s, by_start.get(start_s)))
    return "".join(cells)


def _cell(x: int, y: int, start_s: int, window: Row | None) -> str:
    state = "none" if window is None else window["state"]
    wide, middle = _CELL - _GAP, x + (_CELL - _GAP) / 2
    sign = _SIGNS.get(state)
    parts = [
        f"<title>{text(_told(start_s, window))}</title>",
        f'<rect class="{state}" x="{x}" y="{y}" width="{wide}" height="{_HIGH}" rx="4"/>',
        f'<text class="sign" x="{middle:g}" y="{y + 17}" text-anchor="middle">{sign}</text>' if sign else "",
    ]
    if window is not None and window["open_findings"]:
        parts.append(f'<circle class="dot" cx="{x + wide - 5}" cy="{y + 5}" r="3.5"/>')
    return f"<g>{''.join(parts)}</g>"


def _told(start_s: int, window: Row | None) -> str:
    name = format_s(start_s)
    if window is None:
        return f"{name}: nothing in the ledger"
    counts = f"{number(window['entries'])} entries, {number(window['records'])} records"
    return f"{name}: {window['state'].replace('_', ' ')}; {counts}, {number(window['open_findings'])} findings open"


# Bars over time


@dataclass(frozen=True)
class Bars:
    """Sums over time.

    Attributes:
        bucket_s: how long each bar stands for.
        sums: for each bar, from the range's start, the sum of each series.
    """

    bucket_s: int
    first_s: int
    series: tuple[str, ...]
    sums: list[dict[str, int]]


def group_bars(span: Span, windows: Iterable[Row], series: tuple[str, ...]) -> Bars:
    """Sum the named counts over buckets that are wide enough for at most 200 bars."""
    bucket_s = next(
        (size for size in _BUCKETS_S if (span.end_s - span.first_s) / size <= _BARS_MAX - 1), _BUCKETS_S[-1]
    )
    first_s = span.first_s // bucket_s * bucket_s
    sums = [dict.fromkeys(series, 0) for _ in range(-(-(span.end_s - first_s) // bucket_s))]
    for one in windows:
        for name in series:
            sums[(one["start_s"] - first_s) // bucket_s][name] += one[name]
    return Bars(bucket_s, first_s, series, sums)


def how_long(bucket_s: int) -> str:
    """Say what one bar stands for."""
    names = {HOUR_S: "hour", 3 * HOUR_S: "3 hours", 6 * HOUR_S: "6 hours", DAY_S: "day", 7 * DAY_S: "7 days"}
    return names.get(bucket_s, "30 days")


def nice_top(highest: int) -> int:
    """Return the smallest of 2, 4, 6, 8, 10, 20, 40, 60 … that is not below the highest bar; its half is whole."""
    power = 1
    while 10 * power < highest:
        power *= 10
    return next(top * power for top in (2, 4, 6, 8, 10) if top * power >= highest)


def bars(data: Bars) -> str:
    """Draw stacked bars with an axis of counts to the left and of days below."""
    top = nice_top(max((sum(one.values()) for one in data.sums), default=0))
    wide = (_WIDE - _AXIS) / max(len(data.sums), 1)
    grid = [_grid(part * top // 2, top) for part in (0, 1, 2)]
    stacks = [_stack(data, place, wide, top) for place in range(len(data.sums))]
    label = f"{', '.join(data.series)} by {how_long(data.bucket_s)}"
    return _svg(_WIDE, _TALL + _FOOT + 8, label, [*grid, *stacks, *_days_below(data, wide)])


def _grid(value: int, top: int) -> str:
    y = 8 + _TALL * (1 - value / top)
    line = f'<line x1="{_AXIS}" x2="{_WIDE}" y1="{y:g}" y2="{y:g}"/>'
    return line + _label(_AXIS - 8, y + 4, short(value), "end")


def _stack(data: Bars, place: int, wide: float, top: int) -> str:
    sums, start = data.sums[place], format_s(data.first_s + place * data.bucket_s)
    if not any(sums.values()):
        return ""
    told = ", ".join(f"{number(count)} {name}" for name, count in sums.items() if count)
    x, y, parts = _AXIS + place * wide, 8.0 + _TALL, [f"<title>{text(f'{start}: {told}')}</title>"]
    for name, count in sums.items():
        high = _TALL * count / top
        y -= high
        if count:
            parts.append(
                f'<rect class="{name}" x="{x + wide * 0.08:.2f}" y="{y:.2f}" width="{wide * 0.84:.2f}" '
                f'height="{max(high, 0.75):.2f}"/>'
            )
    return f"<g>{''.join(parts)}</g>"


def _days_below(data: Bars, wide: float) -> Iterable[str]:
    every = -(-len(data.sums) // 8)
    if data.bucket_s < DAY_S and len(data.sums) * data.bucket_s >= 2 * DAY_S:
        a_day = DAY_S // data.bucket_s
        every = -(-every // a_day) * a_day
    offset = 0 if data.bucket_s >= DAY_S else -(data.first_s // data.bucket_s) % min(every, DAY_S // data.bucket_s)
    for place in range(offset, len(data.sums), every):
        start = format_s(data.first_s + place * data.bucket_s)
        words = start[11:16] if start[11:13] != "00" else start[5:10] if data.bucket_s <= DAY_S else start[:10]
        if place * wide < _WIDE - _AXIS - 60:
            yield _label(_AXIS + place * wide, _TALL + _FOOT + 2, words)


# Findings by kind


def kinds(tally: Mapping[tuple[str, str], int], states: Sequence[str]) -> str:
    """Draw a bar a kind, most first, stacked by state."""
    sums: dict[str, int] = {}
    for (kind, _), count in tally.items():
        sums[kind] = sums.get(kind, 0) + count
    ranked = sorted(sums, key=lambda kind: (-sums[kind], kind))
    scale = (_WIDE - _LABEL - 80) / max(sums.values(), default=1)
    rows = [
        _kind(kind, [(state, tally.get((kind, state), 0)) for state in states], place * _BAR_HIGH, scale)
        for place, kind in enumerate(ranked)
    ]
    return _svg(_WIDE, len(ranked) * _BAR_HIGH, "findings by kind and state", rows)


def _kind(kind: str, counts: Sequence[tuple[str, int]], y: int, scale: float) -> str:
    parts, x = [_label(_LABEL - 12, y + 18, kind.replace("_", " "), "end")], float(_LABEL)
    for state, count in counts:
        if count:
            told = f"<title>{text(kind)}: {number(count)} {state}</title>"
            shape = f'<rect class="{state}" x="{x:.2f}" y="{y + 5}" width="{max(count * scale, 1):.2f}" height="18"/>'
            parts.append(f"<g>{told}{shape}</g>")
            x += max(count * scale, 1)
    return "".join([*parts, _label(x + 8, y + 18, number(sum(count for _, count in counts)))])
