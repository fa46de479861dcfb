"""Many trials, on all cores, and what they came to together."""

import gc
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, islice

from ledger import clock
from tests.fault.sim.boundaries import EXHAUSTIVE
from tests.fault.sim.database import Database
from tests.fault.sim.scenarios import SCENARIOS
from tests.fault.sim.server import TEMPLATE
from tests.fault.sim.trial import Trial, attempt, first_difference, shrink
from tests.quick_postgres import named, tell

CHUNK = 8
TWICE_EVERY = 100
SHRUNK_MAX = 5
_LOG_LINES = 25


@dataclass
class Sum:
    """What some trials came to.

    Attributes:
        numbers: histories, windows, occurrences and the like, by name.
        broken_off: whether somebody interrupted.
        failures: one text for each trial that went wrong.
    """

    numbers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    simulated_s: float = 0.0
    broken_off: bool = False
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Sum") -> None:
        """Take in what others have found."""
        self.numbers += other.numbers
        self.faults += other.faults
        self.simulated_s += other.simulated_s
        self.failures += other.failures
        self.broken_off |= other.broken_off


class _Here:
    """What one process of the pool works with."""

    database: Database | None = None


def _open(url: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C reaches all; who asked for the trials ends them
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # what is imported stays, and histories leave few cycles
    gc.set_threshold(50_000, 20, 20)
    name = f"simulated_{os.getpid()}"
    tell(url, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    _Here.database = Database(named(url, name))


def run_chunk(trials: list[Trial]) -> Sum:
    """Try a few; one in a hundred histories drawn from a seed is told twice."""
    assert _Here.database is not None, "the pool opens it"
    done = Sum()
    for trial in trials:
        try_one(trial, _Here.database, done)
    return done


def try_one(trial: Trial, database: Database, done: Sum) -> None:
    """Try one, and add it to the sum."""
    verdict = attempt(trial, database)
    done.numbers["histories"] += 1
    if verdict.result is not None:
        result, tally = verdict.result, verdict.result.tally
        done.faults.update({str(fault): number for fault, number in result.met.items()})
        done.simulated_s += result.simulated_s
        done.numbers.update(
            windows=result.windows,
            boundaries=len(result.names),
            occurrences=tally.occurrences,
            effects=tally.effects,
            recovered=tally.recovered,
            sent_twice=tally.sent_twice,
            lost=tally.lost,
            unexpected=tally.unexpected,
            worked_twice=tally.worked_twice,
            crashed_in_recovery=result.crashed_in_recovery > 0,
        )
    if verdict.wrongs:
        done.numbers["failed"] += 1
        shortest = shrink(trial, database) if done.numbers["failed"] <= SHRUNK_MAX else trial
        done.failures.append(_told(shortest, database))
    elif trial.scenario is None and trial.seed % TWICE_EVERY == 0:
        done.numbers["told twice"] += 1
        difference = first_difference(trial, database)
        if difference is not None:
            done.failures.append(f"{trial} is not the same twice: {difference}")


def _told(trial: Trial, database: Database) -> str:
    again = attempt(trial, database)
    steps = [f"    {line}" for line in again.log if any(f" {fault}" in line for fault in trial.faults.values())]
    return "\n".join([f"{trial}", *(f"  wrong: {one}" for one in again.wrongs[:8]), *steps[:_LOG_LINES]])


def boundary_trials(database: Database, names: Iterable[str] = tuple(SCENARIOS), every: int = 1) -> Iterator[Trial]:
    """Yield every scenario, broken at every boundary in four ways, after once without any fault.

    Args:
        every: only every so many-th boundary.
    """
    for name in names:
        whole = Trial(scenario=name, plan={})
        result = attempt(whole, database).result
        yield whole
        if result is not None:
            for at in range(result.first, result.last + 1, every):
                yield from (Trial(scenario=name, plan={at: fault}) for fault in EXHAUSTIVE)


def seed_trials(first: int, number: int | None) -> Iterator[Trial]:
    """Yield so many stories, from a seed on; without a number, ever more."""
    seeds = count(first) if number is None else range(first, first + number)
    return (Trial(seed=seed) for seed in seeds)


def run_all(url: str, trials: Iterable[Trial], processes: int, minutes: float | None, show: "Shows") -> Sum:
    """Run trials in several processes, until there are none left, the time is over, or somebody interrupts."""
    end_s = None if minutes is None else clock.monotonic_s() + minutes * 60
    whole, chunks = Sum(), _chunks_until(trials, end_s)
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawning, initializer=_open, initargs=(url,)) as pool:
        running = {pool.submit(run_chunk, chunk) for chunk in islice(chunks, processes * 2)}
        try:
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for one in ended:
                    whole.add(one.result())
                show(whole)
                running |= {pool.submit(run_chunk, chunk) for chunk in islice(chunks, len(ended))}
        except KeyboardInterrupt:
            whole.broken_off = True
            pool.shutdown(wait=True, cancel_futures=True)
    return whole


def _chunks_until(trials: Iterable[Trial], end_s: float | None) -> Iterator[list[Trial]]:
    waiting = iter(trials)
    while (end_s is None or clock.monotonic_s() < end_s) and (chunk := list(islice(waiting, CHUNK))):
        yield chunk


class Shows:
    """Shows how far it has come; this one does not."""

    def __call__(self, so_far: Sum) -> None:
        """Look at what there is so far."""
