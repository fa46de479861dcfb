"""Bugs in what is done when a ledger has forgotten something."""

from tests.fault.planted.bugs.catchers import CONSUMER_FORGOTTEN, RESTORED
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "witness-not-compared",
        "a ledger that was put back to an earlier state sends nothing of what it has forgotten",
        [Edit("ledger/witness.py", "        if one.witness.seq > seq:\n", "        if one.witness.seq > seq + 1:\n")],
        [f"{RESTORED}::test_a_lease_alone_counts"],
    ),
    Bug(
        "other-ledger-not-noticed",
        "of two ledgers under one name, the second sends nothing of what the first has sent",
        [Edit("ledger/witness.py", "        if one.witness.ledger_id != ledger_id:\n", "        if not ledger_id:\n")],
        [f"{RESTORED}::test_of_two_ledgers_the_one_that_a_person_trusts_goes_on"],
    ),
    Bug(
        "opening-not-counted",
        "each opening counts the window on, in its own transaction",
        [
            Edit(
                "ledger/outbox.py",
                "        if opened.entries:\n            raise_seq(connection, tenure)\n        return opened\n",
                "        return opened\n",
            ),
            Edit("ledger/outbox.py", "    tenure.progress.seq += bool(opened.entries)\n", ""),
        ],
        [f"{RESTORED}::test_each_opening_counts"],
    ),
    Bug(
        "sent-on-without-counting",
        "no more jobs are marked on one number than may be in doubt after a crash",
        [Edit("dispatch/witnesses.py", "    run.witness.spent = True\n", "    run.witness.spent = False\n")],
        [f"{RESTORED}::test_what_is_left_of_before_is_not_forgotten_in_one_piece"],
    ),
    Bug(
        "counted-before-it-was-compared",
        "a run that could not compare its window does not count it on",
        [
            Edit(
                "ledger/sql/acquire_lease.sql",
                "    lease_run_id = %(run_id)s,\n",
                "    lease_run_id = %(run_id)s, seq = seq + 1,\n",
            )
        ],
        [f"{RESTORED}::test_what_could_not_be_compared_stays_to_be_compared"],
    ),
    Bug(
        "witness-written-unconditionally",
        "who writes the witness replaces only what it has read",
        [
            Edit(
                "dispatch/aws/objects.py",
                '                    mode="create" if etag is None else {"e_tag": etag},\n',
                '                    mode="overwrite",\n',
            )
        ],
        [f"{RESTORED}::test_two_ledgers_that_begin_at_the_same_moment"],
    ),
    Bug(
        "marked-before-the-witness-has-landed",
        "the witness of a batch lies beside the objects before anything of it is marked",
        [Edit("dispatch/emit.py", "    land(run, overtaken)\n", "    del overtaken\n")],
        [f"{RESTORED}::test_a_run_that_is_overtaken_beside_the_objects_marks_nothing_more"],
    ),
    Bug(
        "held-by-the-fenced",
        "a run that has lost its lease holds nothing",
        [
            Edit(
                "ledger/windows.py",
                (
                    "    def work(connection: Connection) -> None:\n        check_fence(connection, tenure)\n"
                    "        if connection.execute(update, parameters).fetchone() is not None and kind"
                ),
                (
                    "    def work(connection: Connection) -> None:\n"
                    "        if connection.execute(update, parameters).fetchone() is not None and kind"
                ),
            )
        ],
        [f"{RESTORED}::test_a_stalled_run_that_lost_its_lease_holds_nothing"],
    ),
    Bug(
        "neighbours-not-looked-at",
        "a window waits for a neighbour that is behind, with which it shares the records on the hour",
        [
            Edit(
                "ledger/windows.py",
                "behind = _behind(beside, known, identity)",
                "behind = _behind({}, known, identity)",
            )
        ],
        [f"{RESTORED}::test_a_neighbour_that_is_behind_is_held_and_waited_for"],
    ),
    Bug(
        "only-the-configured-place-looked-at",
        "a changed bucket or prefix is no blind spot",
        [Edit("dispatch/run.py", "dict.fromkeys([*here, *self.origin.places])", "dict.fromkeys(here)")],
        [f"{RESTORED}::test_a_changed_place_is_no_blind_spot"],
    ),
    Bug(
        "deleted-witness-trusted",
        "where a witness is gone, an object that no entry refers to holds the window",
        [Edit("dispatch/witnesses.py", "    elif tenure.progress.seq:\n", "    elif tenure.progress.seq < 0:\n")],
        [f"{RESTORED}::test_without_a_witness_an_object_that_nobody_refers_to_holds_the_window"],
    ),
    Bug(
        "released-before-adoption",
        "what a ledger has forgotten is adopted before its window is released",
        [Edit("ledger/holds.py", '    elif kind == "behind":\n', '    elif kind == "person":\n')],
        [f"{RESTORED}::test_nothing_is_released_before_it_is_adopted"],
    ),
    Bug(
        "opened-jobs-taken-for-unsent",
        "an entry that the copy knows as opened may have been sent, when its object is stored",
        [Edit("reconcile/adopt.py", "    if forgotten and known:\n", "    if not forgotten and known:\n")],
        [f"{RESTORED}::test_entries_that_were_only_opened_in_the_copy_may_have_been_sent"],
    ),
    Bug(
        "forgotten-receipts-taken-for-none",
        "after a restore, a sent job without a receipt counts as worked",
        [Edit("ledger/gathering.py", 'return self.forgotten or "completed"', 'return "completed"')],
        [f"{RESTORED}::test_after_a_restore_a_sent_job_without_a_receipt_counts_as_worked"],
    ),
    Bug(
        "forgotten-job-used-up",
        "a consumer takes no more from a queue that brings a job which the ledger may have forgotten",
        [Edit("dispatch/shift.py", "                self._wait_if_forgotten(delivery, message)\n", "")],
        [f"{CONSUMER_FORGOTTEN}::test_a_consumer_waits_for_a_ledger_that_has_forgotten"],
    ),
]
