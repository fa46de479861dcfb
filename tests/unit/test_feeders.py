"""Batches are whole groups of bounded size; a group too large for one is streamed, in order, to its end."""

from collections.abc import Iterator
from typing import Any

import pytest

from dispatch import feeders
from dispatch.feeders import Streamed, cut_batches
from ledger.facts import Record


def record(group: int, number: int, size: int = 10) -> Record:
    return Record(f"{group}-{number}", number, bytes([group]), number.to_bytes(4, "big"), b"x" * size, 0)


def groups(*sizes: int) -> list[Record]:
    return [record(group, number) for group, size in enumerate(sizes) for number in range(size)]


def cut(records: list[Record]) -> list[list[str] | list[list[str]]]:
    """Cut and read to the end; a streamed group shows its chunks, the second time like the first."""

    def of_group(key: bytes) -> Iterator[Record]:
        return (one for one in records if one.group_key == key)

    out: list[Any] = []
    for batch in cut_batches(iter(records), of_group):
        if isinstance(batch, Streamed):
            chunks = [[one.record_id for one in chunk] for chunk in batch.chunks()]
            assert chunks == [[one.record_id for one in chunk] for chunk in batch.chunks()]
            assert batch.first.record_id == chunks[0][0]
            out.append(chunks)
        else:
            out.append([one.record_id for one in batch])
    return out


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeders, "BATCH_RECORDS_MAX", 3)
    monkeypatch.setattr(feeders, "BATCH_BYTES_MAX", 1000)


def test_nothing_makes_no_batch() -> None:
    assert cut([]) == []


def test_whole_groups_fill_a_batch() -> None:
    assert cut(groups(1, 2, 1)) == [["0-0", "1-0", "1-1"], ["2-0"]]
    assert cut(groups(2, 2)) == [["0-0", "0-1"], ["1-0", "1-1"]]
    assert cut(groups(3, 1)) == [["0-0", "0-1", "0-2"], ["1-0"]]
    assert cut(groups(1, 1, 1, 1)) == [["0-0", "1-0", "2-0"], ["3-0"]]


def test_a_group_that_exactly_fits_is_no_stream_and_one_more_is() -> None:
    assert cut(groups(3)) == [["0-0", "0-1", "0-2"]]
    assert cut(groups(4)) == [[["0-0", "0-1", "0-2"], ["0-3"]]]
    assert cut(groups(7)) == [[["0-0", "0-1", "0-2"], ["0-3", "0-4", "0-5"], ["0-6"]]]


def test_a_stream_between_batches() -> None:
    assert cut(groups(1, 4, 1)) == [["0-0"], [["1-0", "1-1", "1-2"], ["1-3"]], ["2-0"]]
    assert cut(groups(4, 4)) == [[["0-0", "0-1", "0-2"], ["0-3"]], [["1-0", "1-1", "1-2"], ["1-3"]]]


def test_bytes_bound_a_batch_too() -> None:
    assert cut([record(0, 0, 500), record(1, 0, 500), record(2, 0, 1)]) == [["0-0", "1-0"], ["2-0"]]
    assert cut([record(0, 0, 5000), record(1, 0, 5000)]) == [["0-0"], ["1-0"]]
    assert cut([record(0, 0, 600), record(0, 1, 600), record(0, 2, 100)]) == [[["0-0"], ["0-1", "0-2"]]]


def test_groups_bound_a_batch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is opened at once is marked at once."""
    assert feeders.BATCH_GROUPS_MAX == 160
    monkeypatch.setattr(feeders, "BATCH_GROUPS_MAX", 2)
    assert cut(groups(1, 1, 1, 1, 1)) == [["0-0", "1-0"], ["2-0", "3-0"], ["4-0"]]
    assert cut(groups(1, 4, 1, 1)) == [["0-0"], [["1-0", "1-1", "1-2"], ["1-3"]], ["2-0", "3-0"]]


def test_no_more_is_read_than_a_chunk_ahead() -> None:
    read: list[int] = []

    def reading(group: bytes = b"") -> Iterator[Record]:
        for number in range(100):
            read.append(number)
            yield record(0, number)

    streamed = next(iter(cut_batches(reading(), reading)))
    assert isinstance(streamed, Streamed)
    assert len(read) <= 7
    read.clear()
    chunks = streamed.chunks()
    next(chunks)
    next(chunks)
    assert len(read) <= 9
