"""Bugs in long-running work."""

from tests.fault.planted.bugs.catchers import JOBS, WORKER
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "job-completed-by-a-fenced-worker",
        "a worker that has lost its claim writes nothing any more",
        [
            Edit(
                "ledger/sql/complete_job.sql",
                "WHERE id = %(id)s AND status = 'processing' AND claim = %(claim)s",
                "WHERE id = %(id)s AND status = 'processing' AND %(claim)s::uuid IS NOT NULL",
            )
        ],
        [f"{JOBS}::test_a_worker_that_lost_its_claim_writes_nothing"],
    ),
    Bug(
        "attempt-counted-at-failure",
        "an attempt counts from its claim, so that a job that kills its workers ends",
        [
            Edit(
                "ledger/sql/claim_job.sql",
                ("    attempts = attempts + CASE WHEN status = 'processing' AND claim = %(claim)s THEN 0 ELSE 1 END\n"),
                "    attempts = attempts\n",
            ),
            Edit("ledger/jobs.py", "attempts = attempts - %(uncounted)s", "attempts = attempts + 1 - %(uncounted)s"),
        ],
        [f"{JOBS}::test_three_attempts_and_no_more"],
    ),
    Bug(
        "same-claim-counted-twice",
        "a claim whose answer was lost counts once",
        [
            Edit(
                "ledger/sql/claim_job.sql",
                "CASE WHEN status = 'processing' AND claim = %(claim)s THEN 0 ELSE 1 END",
                "1",
            )
        ],
        [f"{JOBS}::test_the_same_claim_counts_once"],
    ),
    Bug(
        "live-job-taken",
        "a job whose claim has not run out stays with its worker",
        [Edit("ledger/sql/claim_job.sql", "OR expires_at <= ledger_now() AND attempts", "OR attempts")],
        [f"{JOBS}::test_one_of_many_workers_claims"],
    ),
    Bug(
        "cancel-undone",
        "a cancelled job stays so, also when its worker comes to the end",
        [
            Edit(
                "ledger/sql/complete_job.sql",
                "WHERE id = %(id)s AND status = 'processing' AND claim",
                "WHERE id = %(id)s AND claim",
            )
        ],
        [f"{JOBS}::test_cancelled_in_every_state_it_stays_so"],
    ),
    Bug(
        "busy-is-an-attempt",
        "a job that meets a busy window goes back without an attempt counted",
        [
            Edit(
                "ops/jobs/worker.py",
                ('    if isinstance(error, BusyError):\n        return Verdict("return", job.queue, pause)\n'),
                (
                    "    if isinstance(error, BusyError):\n"
                    '        return Verdict("return", job.queue, pause, counts=True)\n'
                ),
            )
        ],
        [f"{WORKER}::test_what_becomes_of_a_job"],
    ),
    Bug(
        "dead-letter-deleted-first",
        "a message is put aside before it is deleted",
        [
            Edit(
                "ops/jobs/worker.py",
                "        buried = control.bury(self._queue, received.body, reason)\n",
                (
                    "        control.delete(self._queue, received)\n"
                    "        buried = control.bury(self._queue, received.body, reason)\n"
                ),
            )
        ],
        [f"{WORKER}::test_killed_while_a_message_is_put_aside"],
    ),
    Bug(
        "message-deleted-before-its-job-ended",
        "a message is deleted when its job is completed, not before",
        [
            Edit(
                "ops/jobs/worker.py",
                "            self._write_down(hand, verdict, reason, result)\n",
                (
                    "            self._let_go(hand, verdict, reason)\n"
                    "            self._write_down(hand, verdict, reason, result)\n"
                ),
            )
        ],
        [f"{WORKER}::test_killed_before_a_job_is_completed"],
    ),
    Bug(
        "lost-job-not-relayed",
        "a job whose worker and message are both gone is put on its queue again",
        [
            Edit(
                "ledger/sql/jobs_to_relay.sql",
                "waiting.status = 'pending' OR waiting.expires_at",
                "waiting.status = 'pending' AND waiting.expires_at",
            )
        ],
        [f"{JOBS}::test_the_relay_sends_what_was_not_sent_and_what_was_lost"],
    ),
    Bug(
        "steps-done-again",
        "what an attempt has done is not done again by the next one",
        [
            Edit(
                "ops/jobs/kinds.py",
                "    for window in [one for one in windows if one.name not in documents]:\n",
                "    for window in windows:\n",
            )
        ],
        [f"{WORKER}::test_windows_that_are_done_are_not_done_again_by_the_next_attempt"],
    ),
]
