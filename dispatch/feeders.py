"""Three ways to yield batches of whole groups: `full`, `staged` and `paged`. Nothing else tells the flows apart."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import groupby, islice, takewhile
from operator import attrgetter

import msgspec

from dispatch.aws.queues import SENT_AT_ONCE_MAX
from dispatch.aws.source import SourcePage
from dispatch.items import Item
from dispatch.judging import Left, Rules, Verdict, judge, sighted
from dispatch.run import Run
from ledger import outbox, runs, staging
from ledger.facts import BadRecord, PageFacts, Record

BATCH_RECORDS_MAX = 1000
BATCH_BYTES_MAX = 4 * 1024 * 1024
# What is opened at once is marked at once, so that each opening's number stands for no more jobs than may be in doubt.
BATCH_GROUPS_MAX = SENT_AT_ONCE_MAX
_BY_GROUP = attrgetter("group_key")


class Streamed(msgspec.Struct, frozen=True):
    """A group that is too large to hold.

    Attributes:
        first: its first record.
        chunks: starts to read all of its records in payload order, a bounded number at a time; may be called again.
    """

    first: Record
    chunks: Callable[[], Iterator[list[Record]]]


Batch = list[Record] | Streamed


def feed(run: Run) -> Iterator[Batch]:
    """Yield the due records of the run's window as batches of whole groups (of one page's groups, when paged).

    What was yielded must be emitted before the next batch is asked for.
    """
    return {"full": _full, "staged": _staged, "paged": _paged}[run.flow](run)


def _full(run: Run) -> Iterator[Batch]:
    """Read everything, then group: the old way, in memory as large as the window."""
    records: list[Record] = []
    for page in _pages(run):
        sifted = sift(run, page)
        runs.journal_page(run.store, run.tenure, sifted.facts, sifted.bad)
        records += sifted.candidates
    yield from _in_memory(records)


def _paged(run: Run) -> Iterator[Batch]:
    """Emit each page before the next is read; a group is split where a page ends."""
    for page in _pages(run):
        sifted = sift(run, page)
        runs.journal_page(run.store, run.tenure, sifted.facts, sifted.bad)
        yield from _in_memory(sifted.candidates)
        runs.finish_page(run.store, run.tenure, sifted.facts.number)
        del page, sifted


def _staged(run: Run) -> Iterator[Batch]:
    """Copy every page into the ledger's staging table, then read it back in order: an external sort."""
    expected = largest_bytes = 0
    for page in _pages(run):
        sifted = sift(run, page)
        staged = staging.stage_page(run.store, run.tenure, sifted.facts, sifted.candidates, sifted.bad)
        expected += staged
        run.saw_again(len(sifted.candidates) - staged)
        largest_bytes = max([largest_bytes, *(len(one.body) for one in sifted.candidates)])
        del page, sifted
    with closing(staging.StagedRecords(run.store, run.tenure, expected, largest_bytes)) as staged_records:
        yield from cut_batches(staged_records.in_order(), staged_records.of_group)


def _pages(run: Run) -> Iterator[SourcePage]:
    for page in run.source.pages(run.tenure.window, run.page_size):
        run.checkpoint()
        run.counts.pages += 1
        run.progress()
        yield page
        del page
        run.checkpoint()


class Sifted(msgspec.Struct, frozen=True):
    """What a page is made of: records to verify and send, and records that cannot be used."""

    facts: PageFacts
    candidates: list[Record]
    bad: list[BadRecord]


def sift(run: Run, page: SourcePage) -> Sifted:
    """Judge a page by the index's copy; where that copy cannot decide, by the base table's.

    What was claimed before this run is already promised, whatever became of the record since: it is only counted.
    """
    verdicts: list[Verdict] = []
    doubtful: list[str] = []
    unclaimed = _unclaimed(run, page.items)
    for item in unclaimed:
        verdict = judge(item, run.rules)
        if run.must_read_again(item, verdict):
            doubtful.append(run.identity(item))
        else:
            verdicts.append(verdict)
    outside = verdicts.count(Left.OUTSIDE)
    verdicts += run.judge_again(doubtful)
    candidates = [verdict for verdict in verdicts if isinstance(verdict, Record)]
    bad = [verdict for verdict in verdicts if isinstance(verdict, BadRecord)]
    not_due = len(unclaimed) - outside - len(candidates) - len(bad)
    _count(run, len(page.items), outside, not_due, len(bad))
    run.saw_again(len(page.items) - len(unclaimed))
    return Sifted(_facts(run.rules, run.counts.pages, page, outside, not_due), candidates, bad)


def _unclaimed(run: Run, items: list[Item]) -> list[Item]:
    if not run.skips_claimed:
        return items
    due = [(place, found) for place, item in enumerate(items) if (found := sighted(item, run.rules)) is not None]
    claimed = outbox.claimed_already(run.store, run.tenure, [found for _, found in due])
    dropped = {due[place][0] for place in claimed}
    return [item for place, item in enumerate(items) if place not in dropped]


def _count(run: Run, evaluated: int, outside: int, not_due: int, set_aside: int) -> None:
    run.counts.evaluated += evaluated
    run.counts.outside += outside
    run.counts.not_due += not_due
    run.counts.set_aside += set_aside
    run.counts.due += evaluated - outside - not_due - set_aside


def _facts(rules: Rules, number: int, page: SourcePage, outside: int, not_due: int) -> PageFacts:
    times = [str(item.get(rules.time_attribute, {}).get("S", "")) for item in (page.items[:1] + page.items[-1:])]
    return PageFacts(
        number=number,
        cursor_json=page.cursor_json,
        next_json=page.next_json,
        first_time=times[0].replace("\0", "") if times else None,
        last_time=times[-1].replace("\0", "") if times else None,
        evaluated=len(page.items),
        outside=outside,
        not_due=not_due,
        read_at=page.read_at,
    )


def cut_batches(records: Iterable[Record], of_group: Callable[[bytes], Iterable[Record]]) -> Iterator[Batch]:
    """Cut records, sorted by group and order, into batches of whole groups; a group too large for one is streamed.

    Args:
        of_group: reads one group's records again, in order, given its key.
    """
    batch: list[Record] = []
    size = groups = 0
    for key, members in groupby(records, key=_BY_GROUP):
        chunks = _chunks(members)
        head = next(chunks)
        if next(chunks, None) is not None:
            if batch:
                yield batch
                batch, size, groups = [], 0, 0
            yield Streamed(head[0], partial(_chunks_of, of_group, key))
            continue
        head_size = sum(len(one.body) for one in head)
        too_large = len(batch) + len(head) > BATCH_RECORDS_MAX or size + head_size > BATCH_BYTES_MAX
        if batch and (too_large or groups == BATCH_GROUPS_MAX):
            yield batch
            batch, size, groups = [], 0, 0
        batch += head
        size += head_size
        groups += 1
    if batch:
        yield batch


def _chunks_of(of_group: Callable[[bytes], Iterable[Record]], key: bytes) -> Iterator[list[Record]]:
    return _chunks(of_group(key))


def _in_memory(records: list[Record]) -> Iterator[Batch]:
    records.sort(key=attrgetter("group_key", "order_key"))

    def of_group(key: bytes) -> Iterator[Record]:
        first = bisect_left(records, key, key=_BY_GROUP)
        return takewhile(lambda one: one.group_key == key, islice(records, first, None))

    return cut_batches(records, of_group)


def _chunks(members: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    size = 0
    for record in members:
        if chunk and (len(chunk) == BATCH_RECORDS_MAX or size + len(record.body) > BATCH_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += len(record.body)
    if chunk:
        yield chunk
