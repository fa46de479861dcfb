"""Many calls at once, with few moving parts: threads that take the next piece of work from one shared list."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Work = TypeVar("Work")
Done = TypeVar("Done")


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items in order, the next one being fetched meanwhile, in a thread; never more than one ahead."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def at_once(do: Callable[[Work], Done], pieces: Sequence[Work], threads_max: int) -> list[Done]:
    """Do every piece of work, up to `threads_max` at the same time; returns what came of each, in the same order.

    The first error is raised once the pieces in hand have ended; what had not been begun by then is not done.
    """
    threads = min(threads_max, len(pieces))
    if threads <= 1:
        return [do(piece) for piece in pieces]
    done: dict[int, Done] = {}
    waiting: Iterator[tuple[int, Work]] = iter(list(enumerate(pieces)))  # shared: each thread takes the next piece

    def drain() -> None:
        try:
            for at, piece in waiting:
                done[at] = do(piece)
        except BaseException:
            for _ in waiting:  # leave nothing for the others
                pass
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="aws") as pool:
        for drained in [pool.submit(drain) for _ in range(threads)]:
            drained.result()
    return [done[at] for at in range(len(pieces))]
