"""The chart in docs/: rates as bars, memory against the size of the window as lines. Plain SVG, no library."""

import math
from collections.abc import Iterable, Sequence

from bench.report import WHAT, Row, Rows

_WIDTH, _BAR, _GAP, _LABELS = 960, 20, 8, 250
_COLOURS = {"staged": "#1f6f8b", "paged": "#3aa17e", "full": "#c98b2b", "straight": "#b0483f", "other": "#8a8f98"}
_COMPARED = ("staged", "paged", "full", "straight-window", "straight-paged")
_QUEUES = ("procrastinate", "pgqueuer")
_LABEL_HEIGHT = 17
_LEAST_MIB = 10
_LINES = ("staged", "paged", "full", "straight-window")
_PLOT_HEIGHT = 240


def _colour(name: str) -> str:
    return next((colour for start, colour in _COLOURS.items() if name.startswith(start)), _COLOURS["other"])


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"{weight}>{text}</text>'


def _bars(title: str, rows: Sequence[Row], top: float) -> tuple[list[str], float]:
    """Draw one bar a row, as long as its groups a second; returns the marks and where they end."""
    marks = [_text(16, top, title, size=15, bold=True)]
    longest = max(row["groups_per_s"] for row in rows)
    y = top + 14
    for row in rows:
        width = max(2.0, (_WIDTH - _LABELS - 110) * row["groups_per_s"] / longest)
        marks.append(_text(_LABELS - 8, y + 15, WHAT[row["name"]], anchor="end"))
        place = f'x="{_LABELS}" y="{y:.0f}" width="{width:.0f}" height="{_BAR}"'
        marks.append(f'<rect {place} rx="3" fill="{_colour(row["name"])}"/>')
        marks.append(_text(_LABELS + width + 8, y + 15, f"{row['groups_per_s']:,.0f}"))
        y += _BAR + _GAP
    return marks, y + 24


def _lines(rows: Rows, top: float) -> tuple[list[str], float]:
    """Draw peak memory against the number of records, both on scales of powers of ten."""
    series = [(name, [(row["records"], row["peak_mib"]) for row in rows.of(name)]) for name in _LINES]
    points = [point for _, part in series for point in part]
    if not points:
        return [], top
    x_of = _scale([math.log10(x) for x, _ in points], _LABELS, _WIDTH - 240)
    y_of = _scale([math.log10(_LEAST_MIB), *(math.log10(max(1.0, y)) for _, y in points)], top + _PLOT_HEIGHT, top + 30)
    marks = [_text(16, top, "Peak memory above imports (MiB), by records in the window", size=15, bold=True)]
    for mib in (10, 40, 100, 400, 1000):
        if math.log10(mib) <= max(math.log10(max(1.0, y)) for _, y in points):
            marks += _grid_line(mib, y_of(math.log10(mib)))
    for records in sorted({x for x, _ in points}):
        marks.append(_text(x_of(math.log10(records)), top + _PLOT_HEIGHT + 22, f"{records:,}", anchor="middle"))
    labels: list[tuple[float, float, str]] = []
    for name, part in series:
        drawn = [(x_of(math.log10(x)), y_of(math.log10(max(_LEAST_MIB, y)))) for x, y in part]
        marks += _line(name, drawn)
        labels += [(*drawn[-1], f"{WHAT[name].removeprefix('product, ')} {part[-1][1]:.0f}")] if drawn else []
    marks += _spread(labels)
    return marks, top + _PLOT_HEIGHT + 40


def _grid_line(mib: int, y: float) -> list[str]:
    line = f'<line x1="{_LABELS}" x2="{_WIDTH - 230}" y1="{y:.0f}" y2="{y:.0f}" stroke="#d5d8dc"/>'
    return [line, _text(_LABELS - 8, y + 4, str(mib), anchor="end")]


def _line(name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    dots = [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{_colour(name)}"/>' for x, y in points]
    return [f'<polyline points="{path}" fill="none" stroke="{_colour(name)}" stroke-width="2.5"/>', *dots]


def _spread(labels: Iterable[tuple[float, float, str]]) -> list[str]:
    """Write the labels of the lines' ends, those of one place below each other."""
    lowest: dict[float, float] = {}
    marks = []
    for x, y, text in sorted(labels):
        at = max(y + 4, lowest.get(x, 0.0) + _LABEL_HEIGHT)
        lowest[x] = at
        marks.append(_text(x + 10, at, text))
    return marks


def _scale(values: Iterable[float], low: float, high: float) -> "Scale":
    known = list(values)
    return Scale(min(known), max(known), low, high)


class Scale:
    """Maps a range of values onto a range of pixels."""

    def __init__(self, least: float, most: float, low: float, high: float) -> None:
        self._least, self._low = least, low
        self._step = (high - low) / ((most - least) or 1.0)

    def __call__(self, value: float) -> float:
        return self._low + (value - self._least) * self._step


def draw(rows: Rows) -> str:
    """Return the whole chart."""
    marks: list[str] = []
    y = 30.0
    for latency in (False, True):
        part = [row for name in _COMPARED if (row := rows.least(name, latency=latency)) is not None]
        if part:
            title = f"Groups per second, {part[0]['latency_ms']:g} ms latency per call"
            drawn, y = _bars(title, part, y)
            marks += drawn
    queues = [row for name in _QUEUES if (row := rows.least(name)) is not None]
    if queues:
        drawn, y = _bars("Jobs per second put into a queue in PostgreSQL: the queueing half alone", queues, y)
        marks += drawn
    drawn, y = _lines(rows, y)
    marks += drawn
    frame = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:.0f}" font-family="system-ui, sans-serif">'
    )
    ground = f'<rect width="{_WIDTH}" height="{y:.0f}" fill="#ffffff"/>'
    return "\n".join([frame, ground, '<g fill="#1d2329">', *marks, "</g>", "</svg>"]) + "\n"
