"""Bugs in consumers and their receipts."""

from tests.fault.planted.bugs.catchers import CONSUMER, LIFE, RECEIPTS
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "receipt-ended-by-anybody",
        "only the claim that has the job ends it",
        [Edit("ledger/sql/end_receipt.sql", " AND receipts.claim = %(claim)s", "")],
        [LIFE, f"{RECEIPTS}::test_one_that_has_run_out_passes_on"],
    ),
    Bug(
        "receipt-without-expiry",
        "a job whose worker is dead passes on to another",
        [Edit("ledger/sql/take_receipt.sql", "receipt.expires_at <= ledger_now() OR ", "")],
        [LIFE, f"{RECEIPTS}::test_one_that_has_run_out_passes_on"],
    ),
    Bug(
        "receipt-taken-from-the-living",
        "one worker at a time",
        [
            Edit(
                "ledger/sql/take_receipt.sql",
                "(receipt.expires_at <= ledger_now() OR receipt.claim = %(claim)s)",
                "true",
            )
        ],
        [LIFE, f"{RECEIPTS}::test_twenty_at_once_and_one_goes_ahead"],
    ),
    Bug(
        "superseded-given-out",
        "a job that a redo has replaced is not worked any more",
        [
            Edit(
                "ledger/sql/take_receipt.sql",
                "WHERE receipt.state = 'failed'",
                "WHERE receipt.state IN ('failed', 'superseded')",
            )
        ],
        [LIFE, f"{RECEIPTS}::test_a_superseded_one_is_over"],
    ),
    Bug(
        "receipt-of-a-redo-proves",
        "a receipt that no worker ever claimed proves no send",
        [Edit("ledger/sql/prove_received.sql", ("\n         AND receipts.attempts > 0"), "")],
        [f"{RECEIPTS}::test_a_receipt_of_a_redo_proves_no_send"],
    ),
    Bug(
        "effect-without-its-receipt",
        "a transaction that is tried again after its first try committed has no second effect",
        [
            Edit(
                "dispatch/working.py",
                "            if receipts.completed_at(connection, job.claim) is not None:\n",
                "            if job.claim is None:\n",
            )
        ],
        [f"{CONSUMER}::test_a_lost_commit_answer_makes_no_second_effect"],
    ),
    Bug(
        "message-dropped-before-its-receipt",
        "a message is deleted only when its receipt is completed",
        [
            Edit(
                "dispatch/shift.py",
                "                left_out = self._work(job).left_out\n",
                ("                self._delete(job.delivery)\n                left_out = self._work(job).left_out\n"),
            )
        ],
        [f"{CONSUMER}::test_an_attempt_that_fails_is_told_and_comes_again"],
    ),
    Bug(
        "unknown-key-dropped",
        "a message that the ledger does not know is never dropped",
        [
            Edit(
                "dispatch/shift.py",
                '                return self._leave(delivery, "unknown_key", reason)',
                (
                    "                self._delete(delivery)\n"
                    '                return self._leave(delivery, "unknown_key", reason)'
                ),
            )
        ],
        [f"{CONSUMER}::test_a_key_that_the_ledger_does_not_have_is_never_dropped"],
    ),
]
