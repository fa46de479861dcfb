"""Bugs in sending again on purpose."""

from tests.fault.planted.bugs.catchers import REDO, REDO_BROKEN_OFF
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "redo-in-the-same-generation",
        "a redo bumps the generation",
        [
            Edit(
                "ledger/gathering.py",
                "OVER (PARTITION BY group_key) + 1, record_id",
                "OVER (PARTITION BY group_key), record_id",
            )
        ],
        [f"{REDO}::test_a_whole_window"],
    ),
    Bug(
        "replaced-jobs-not-superseded",
        "the jobs that a redo replaces are not worked any more",
        [
            Edit(
                "ledger/gathering.py",
                '    superseded = connection.execute(sql("supersede_receipts"), parameters).rowcount\n',
                "    superseded = 0\n",
            )
        ],
        [f"{REDO}::test_a_whole_window"],
    ),
    Bug(
        "moved-plan-applied",
        "a plan is refused when anything that it saw has moved",
        [
            Edit(
                "reconcile/redo.py", "        if seen.amount.hash != plan.hash:\n", "        if not seen.amount.hash:\n"
            )
        ],
        [f"{REDO}::test_a_plan_that_is_out_of_date_is_refused"],
    ),
    Bug(
        "plan-applied-twice",
        "a plan is applied once, however often it is called for",
        [
            Edit("reconcile/redo.py", '    if plan.state != "applied":\n', "    if plan is not None:\n"),
            Edit(
                "reconcile/redo.py",
                "        if seen.amount.hash != plan.hash:\n",
                '        if plan.state != "applied" and seen.amount.hash != plan.hash:\n',
            ),
            Edit(
                "ledger/plans.py",
                ("\"WHERE id = %s AND state = 'planned'\"\n    )\n    if connection"),
                ('"WHERE id = %s"\n    )\n    if connection'),
            ),
        ],
        [f"{REDO_BROKEN_OFF}::test_broken_off_at_each_transaction[Death-before]"],
    ),
    Bug(
        "applying-plan-begun-again",
        "once a plan is applying, a repeat finishes it and begins nothing",
        [Edit("reconcile/redo.py", '        if now.state == "applying":', '        if now.state == "begun":')],
        [f"{REDO_BROKEN_OFF}::test_broken_off_at_each_transaction[Death-before]"],
    ),
    Bug(
        "redo-completed-too-early",
        "a plan is applied only in a transaction that sees nothing of its window unfinished",
        [
            Edit(
                "ledger/sql/complete_redo.sql",
                ("\n      AND NOT EXISTS (SELECT 1 FROM payload_parts WHERE window_id = %(window_id)s)"),
                "",
            )
        ],
        [f"{REDO}::test_a_plan_is_not_applied_while_an_entry_of_it_is_unfinished"],
    ),
    Bug(
        "redo-smaller-than-planned",
        "a claim that conflicts makes a plan stale, never smaller",
        [Edit("reconcile/redo.py", "    if claimed != wanted:\n", "    if claimed > wanted:\n")],
        [f"{REDO}::test_a_claim_that_conflicts_makes_the_plan_stale"],
    ),
    Bug(
        "refused-redo-loses-its-job",
        "when the queue refuses what was to replace a job, that job may be worked again",
        [
            Edit(
                "ledger/outbox.py",
                '        connection.execute(sql("restore_receipts"), _voiding(tenure, redone))\n',
                "        tenure.key()\n",
            )
        ],
        [f"{REDO}::test_a_redo_that_the_queue_refuses_loses_nothing"],
    ),
]
