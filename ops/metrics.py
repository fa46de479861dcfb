"""What Prometheus is told: read from the ledger and the queues when it asks, bounded, no member in any label.

Nothing is counted in this process, so any number of servers tell the same, and a restart loses nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ledger.errors import DispatchLedgerError, UnavailableError
from ledger.gauges import Gauges, read_gauges
from ledger.pool import StorePool
from ledger.settings import Settings
from ops.jobs.sending import LANES, JobSender

LOG = structlog.get_logger(__name__)
_PREFIX = "dispatch_ledger_"
FENCES = ("window", "job", "receipt")
Family = Callable[[], Iterator[Metric]]


@dataclass(eq=False)
class LedgerCollector(Collector):
    """Yields the metrics of one pipeline, made anew for each scrape.

    A source that does not answer is told of as `dispatch_ledger_up` 0; its other metrics are left out then.

    Attributes:
        more: further families, for what is added elsewhere.
    """

    settings: Settings
    pool: StorePool
    sender: JobSender
    more: Sequence[Family] = field(default_factory=list)

    def registry(self) -> CollectorRegistry:
        """Return a registry that holds this and nothing else."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance: that would ask the ledger."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        up = _gauge("up", "Whether the source of these metrics has answered.", "source")
        yield from self._told(up, "ledger", self._of_ledger)
        yield from self._told(up, "queues", self._of_queues)
        for family in self.more:
            yield from family()
        yield up

    def _told(self, up: Gauge, source: str, read: Callable[[], list[Metric]]) -> list[Metric]:
        try:
            told = read()
        except DispatchLedgerError as error:
            LOG.warning("metrics could not be read", source=source, reason=str(error))
            up.add_metric([source], 0)
            return []
        up.add_metric([source], 1)
        return told

    def _of_ledger(self) -> list[Metric]:
        schedule = self.settings.schedule
        with self.pool.lend() as store:
            gauges = read_gauges(store, self.settings.pipeline, schedule.catch_up, schedule.not_before)
        return list(_ledger_metrics(gauges))

    def _of_queues(self) -> list[Metric]:
        depth = _gauge("queue_messages", "Messages on the queue, roughly.", "queue", "state")
        for name, url in self._queues():
            for state, count in self.sender.control.depths(url).items():
                depth.add_metric([name, state], count)
        return [depth]

    def _queues(self) -> Iterator[tuple[str, str]]:
        """Yield name and URL of the control queues and, once, of their dead-letter queues.

        Raises:
            UnavailableError: when one of them has not been found yet.
        """
        buried: dict[str, str] = {}
        for lane in LANES:
            queue = self.sender.found(lane)
            if queue is None:
                raise UnavailableError(f"the queue of {lane} jobs has not been found yet")
            yield queue.name, queue.url
            if queue.dead_letter_url is not None:
                buried[queue.dead_letter_url] = queue.dead_letter_url.rpartition("/")[2]
        for url, name in buried.items():
            yield name, url


def _ledger_metrics(gauges: Gauges) -> Iterator[Metric]:
    jobs = _gauge("jobs", "Jobs that have not ended.", "queue", "status")
    oldest = _gauge("job_oldest_seconds", "Age of the oldest job in this status.", "queue", "status")
    for queue, status, count, oldest_s in gauges.jobs:
        jobs.add_metric([queue, status], count)
        oldest.add_metric([queue, status], oldest_s)
    yield from (jobs, oldest)
    yield _one("entries_unfinished", "Entries that are not confirmed.", gauges.unfinished)
    yield _one("entry_oldest_unfinished_seconds", "Age of the oldest of them.", gauges.oldest_entry_s)
    yield _one("windows_owed", "Closed windows within schedule.catch_up that nobody has dispatched.", gauges.owed)
    yield _one("windows_held", "Windows that wait for a person.", gauges.held)
    behind = "Windows held because the ledger was put back to an earlier state, or another one works under its name."
    yield _one("windows_behind", behind, gauges.behind)
    for name, at in (("dispatch", gauges.dispatched_at), ("reconcile", gauges.reconciled_at)):
        if at is not None:
            text = f"When a {name} of a window last came to its end, in seconds since 1970."
            yield _one(f"{name}_last_success_timestamp_seconds", text, at.timestamp())
    findings = _gauge("findings", "Findings.", "kind", "state")
    for (kind, state), count in gauges.findings.items():
        findings.add_metric([kind, state], count)
    attempts = _gauge("attempts_recent", "Tries to send the entries of the last hour, of all pipelines.", "outcome")
    for outcome, count in gauges.attempts.items():
        attempts.add_metric([outcome], count)
    refusals = Counter(_PREFIX + "fence_rejections", "Writes that came after the right to them.", labels=["kind"])
    for kind in FENCES:
        refusals.add_metric([kind], gauges.refusals.get(kind, 0))
    yield from (findings, attempts, refusals)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(_PREFIX + name, text, labels=labels)


def _one(name: str, text: str, value: float) -> Gauge:
    return Gauge(_PREFIX + name, text, value=value)
