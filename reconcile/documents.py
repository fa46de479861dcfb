"""Reads a stored object back, record by record, without holding it: it may be gigabytes."""

import re
from collections.abc import Iterable, Iterator

import msgspec

from ledger.canonical import members

# A whole string, the beginning of one (no end yet), or a character that gives structure.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(")?|[\[\]{},]', re.DOTALL)
_RECORDS_DEPTH = 2
_FRAME_BYTES_MAX = 4 * 1024 * 1024


class DocumentReader:
    """Yields the records of an object's document (CONTRACT §4) as JSON, one by one.

    Attributes:
        opening: the members that stand before the records, once the first record is there.
        frame: the document without its records, once all of them have been read; None when it is no such document.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._buffer = self._outside = self._last = b""
        self._begin = self._at = self._depth = 0
        self._inside = False
        self.opening: dict[str, msgspec.Raw] = {}
        self.frame: dict[str, msgspec.Raw] | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the records; whatever is no document ends early, or yields what is no record, and has no frame."""
        for piece in self._pieces:
            self._buffer = self._buffer[self._begin :] + piece
            self._at, self._begin = self._at - self._begin, 0
            while (found := _TOKEN.search(self._buffer, self._at)) is not None:
                if found[0][:1] == b'"' and found[1] is None:  # the rest of the string is in the next piece
                    self._at = found.start()
                    break
                record = self._inside_of(found) if self._inside else self._outside_of(found)
                self._at = found.end()
                if record:
                    yield record
            else:
                self._at = len(self._buffer)
            if not self._inside and len(self._buffer) > _FRAME_BYTES_MAX:
                return
        self.frame = _frame_of(self._outside + self._buffer[self._begin :])

    def _outside_of(self, found: re.Match[bytes]) -> bytes:
        token = found[0]
        if token[:1] == b'"':
            self._last = token
        elif token in b"[{":
            self._depth += 1
            if self._depth == _RECORDS_DEPTH and token == b"[" and self._last == b'"records"':
                self._outside += self._buffer[self._begin : found.end()]
                self._begin, self._inside = found.end(), True
                self.opening = _frame_of(self._outside + b"]}") or {}
        elif token in b"]}":
            self._depth -= 1
        return b""

    def _inside_of(self, found: re.Match[bytes]) -> bytes:
        """Return the record that ends here, or nothing."""
        token, record = found[0], b""
        ends = self._depth == _RECORDS_DEPTH and token in b",]"
        if ends:
            record = self._buffer[self._begin : found.start()]
            self._inside = token == b","
            self._begin = found.end() if self._inside else found.start()
        if token in b"[{":
            self._depth += 1
        elif token in b"]}":
            self._depth -= 1
        return record


def _frame_of(raw: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        frame = members(raw)
    except ValueError:
        return None
    return frame if bytes(frame.get("records", b"")) == b"[]" else None
