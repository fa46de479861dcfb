"""The range of instants that a report covers. Pure; the time now is passed in."""

from dataclasses import dataclass

from ledger.errors import InputError
from ledger.instants import DAY_S, format_s, parse_instant

DEFAULT_S = 7 * DAY_S
# Ten years, of which three are leap years.
LONGEST_S = 3653 * DAY_S


@dataclass(frozen=True)
class Span:
    """A range of whole seconds since 1970; a window is in it when it starts at `first_s` or later, before `end_s`."""

    first_s: int
    end_s: int

    @property
    def first(self) -> str:
        """The first second as text."""
        return format_s(self.first_s)

    @property
    def end(self) -> str:
        """The end, which is not in it, as text."""
        return format_s(self.end_s)

    def key(self) -> dict[str, int]:
        """The parameters that identify this range in a statement."""
        return {"first_s": self.first_s, "end_s": self.end_s}


@dataclass(frozen=True)
class Bounds:
    """What was asked for, before it is known what time it is; None stands for the default."""

    first_s: int | None = None
    end_s: int | None = None

    def span(self, now_s: int) -> Span:
        """Fill in the defaults: up to now, from seven days before.

        Raises:
            InputError: when the range is empty, or longer than ten years.
        """
        end_s = now_s if self.end_s is None else self.end_s
        span = Span(end_s - DEFAULT_S if self.first_s is None else self.first_s, end_s)
        if span.first_s >= span.end_s:
            raise InputError(f"--from {span.first} is not before --to {span.end}; give an earlier --from")
        if span.end_s - span.first_s > LONGEST_S:
            raise InputError(f"from {span.first} to {span.end} is more than ten years; ask for less at a time")
        return span


def parse_bounds(since: str | None, until: str | None) -> Bounds:
    """Read the texts of `--from` and `--to`.

    Windows start on the hour, so a fraction of a second is rounded up: it changes no answer.

    Raises:
        InputError: when a text is no RFC 3339 timestamp with a zone, or both together name no range.
    """
    bounds = Bounds(_bound("--from", since), _bound("--to", until))
    if bounds.end_s is not None:
        bounds.span(bounds.end_s)
    return bounds


def _bound(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        seconds, fraction = parse_instant(text)
    except ValueError as reason:
        raise InputError(f"{option} {text[:80]!r}: {reason}") from None
    return seconds + bool(fraction)
