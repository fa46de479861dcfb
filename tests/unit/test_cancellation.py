"""A request to stop counts from the signal on, also when the signal comes in the middle of a wait for it."""

import signal

import pytest

from dispatch.run import Cancellation
from ledger.errors import CancelledError


def test_it_counts_at_once_and_wakes_who_waits() -> None:
    cancellation = Cancellation()
    cancellation.check()
    cancellation.ask(2)
    with pytest.raises(CancelledError, match="signal 2"):
        cancellation.check()
    assert cancellation.asked.wait(10)


def test_a_signal_in_the_middle_of_a_wait_does_not_wait_for_itself() -> None:
    """The waiter holds a lock for a moment, which setting the event needs too."""
    cancellation = Cancellation()
    before = signal.signal(signal.SIGUSR1, lambda *_: cancellation.ask(15))
    try:
        with cancellation.asked._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGUSR1)
            assert cancellation.is_asked
            assert not cancellation.asked.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancellation.asked.wait(10)
