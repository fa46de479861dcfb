"""Long-running jobs by hand: queues of a test's own, and workers that take one step when they are told to."""

import json
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Self
from uuid import UUID

from pydantic import TypeAdapter
from rich.console import Console

from dispatch.aws.control import ControlQueues
from dispatch.aws.session import Session
from ledger import jobs
from ledger.jobs import Job, Lane
from ledger.store import Store
from ops.jobs.requests import JobRequest, new_job
from ops.jobs.sending import LANES, JobSender
from ops.jobs.worker import Slot, Timing, Worker
from tests.aws_servers import REGION, World
from tests.rig import Rig

REQUEST: TypeAdapter[Any] = TypeAdapter(JobRequest)
NOW = timedelta()
TIMING = Timing(
    lease=timedelta(seconds=30), beat=timedelta(milliseconds=20), pause=NOW, fast_limit=timedelta(seconds=60)
)


def make_queues(world: World) -> dict[str, str]:
    """Make both control queues and a dead-letter queue; gives the settings that name them, by dotted key."""
    url = world.sqs.create_queue(QueueName=f"jobs-dead-{world.suffix}")["QueueUrl"]
    arn = world.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1000})
    named = {"jobs.queue": f"jobs-{world.suffix}", "jobs.slow_queue": f"jobs-slow-{world.suffix}"}
    for name in named.values():
        world.sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})
    return named


@cache
def control_of(endpoint: str) -> ControlQueues:
    """Connect to the queues of an emulator, once: making clients takes longer than most steps."""
    return ControlQueues(Session(endpoint, REGION), send=timedelta(seconds=2), wait=NOW)


class JobRig:
    """Jobs for one world and one ledger.

    Args:
        settings: by dotted key with `__` for the dot, for all workers.
    """

    def __init__(self, rig: Rig, store: Store, **settings: str) -> None:
        self.rig, self.world, self.store = rig, rig.world, store
        self.queues = make_queues(rig.world)
        rig.defaults |= self.queues
        self.settings = rig.settings(**settings)
        self.sender = JobSender(control_of(self.world.endpoint), self.settings.jobs)
        self._slots: list[Slot] = []
        for lane in LANES:
            self.sender.queue(lane)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._slots:
            slot.close()

    def worker(self, timing: Timing = TIMING) -> Worker:
        """Make what the slots of a process share."""
        return Worker(
            self.settings, self.rig.partners(self.settings), self.sender, self.rig.url, timing, Console(quiet=True)
        )

    def slot(self, lane: Lane = "fast", timing: Timing = TIMING) -> Slot:
        """Make a worker of one slot, which takes a step when it is told to."""
        self._slots.append(Slot(self.worker(timing), lane))
        return self._slots[-1]

    def post(self, kind: str, params: Mapping[str, Any], *, send: bool = True, **more: Any) -> UUID:
        """Ask for a job, and put its id on its queue."""
        request = REQUEST.validate_python({"kind": kind, "params": params, **more})
        job = jobs.create_job(self.store, "reward", new_job(request, "test"), 100)
        if send:
            assert self.sender.send(self.store, job.id, job.queue)
        return job.id

    def job(self, job_id: UUID) -> Job:
        """Look at a job."""
        found = jobs.find_job(self.store, "reward", job_id)
        assert found is not None
        return found

    def result(self, job_id: UUID) -> Any:
        """Read a job's result."""
        result = self.job(job_id).result
        assert result is not None
        return json.loads(result)

    def all(self) -> list[tuple[str, str]]:
        """List kind and status of every job, oldest first."""
        return self.rig.rows("SELECT kind, status FROM jobs ORDER BY id")  # type: ignore[return-value]

    def expire(self, job_id: UUID, by: str = "1 second") -> None:
        """Let the claim of a job run out."""
        self.rig.tell("UPDATE jobs SET expires_at = ledger_now() - %s::interval WHERE id = %s", by, job_id)

    def waiting(self, lane: str = "fast") -> list[str]:
        """Take the ids that wait on a queue, `fast`, `slow` or `dead`."""
        return [message["Body"] for message in self.world.receive_all(self.name(lane))]

    def count(self, lane: str = "fast") -> int:
        """Count the messages of a queue, also those in flight."""
        return self.world.message_count(self.name(lane))

    def name(self, lane: str) -> str:
        """Name a queue."""
        return {"fast": "jobs", "slow": "jobs-slow", "dead": "jobs-dead"}[lane] + f"-{self.world.suffix}"
