"""Bugs in claims, what is promised with them, and the books."""

from tests.fault.planted.bugs.catchers import INVARIANTS, LOST, SOURCE
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "claims-taken-for-granted",
        "ours is what the insert gave back, not what was asked for",
        [Edit("ledger/outbox.py", "return None if len(rows) == len(wanted) else set(rows)", "return None")],
        [f"{INVARIANTS}::test_whole_groups_that_overlap_are_divided_without_loss"],
    ),
    Bug(
        "claims-stolen",
        "whoever inserts a claim first owns the dispatch",
        [
            Edit(
                "ledger/sql/open_claims.sql",
                "ON CONFLICT DO NOTHING",
                (
                    "ON CONFLICT (booking_ns, record_id, pipeline_id, generation) DO UPDATE SET entry_id ="
                    " EXCLUDED.entry_id"
                ),
            )
        ],
        [f"{INVARIANTS}::test_whole_groups_that_overlap_are_divided_without_loss"],
    ),
    Bug(
        "claims-in-any-order",
        "claims are inserted in key order, so that two processes cannot deadlock",
        [Edit("ledger/sql/open_claims.sql", "ORDER BY wanted.booking_ns, wanted.record_id\n", "")],
        [f"{INVARIANTS}::test_claims_are_taken_in_the_order_of_their_key"],
    ),
    Bug(
        "hash-over-candidates",
        "the content hash is over what was claimed",
        [
            Edit(
                "ledger/outbox.py",
                "entry = _entry(tenure, entry_id, group, [one.body for one in records], by_route, generation)",
                ("entry = _entry(tenure, entry_id, group, [one.body for one in group.records], by_route, generation)"),
            )
        ],
        [f"{INVARIANTS}::test_whole_groups_that_overlap_are_divided_without_loss"],
    ),
    Bug(
        "open-not-repeatable",
        "a commit whose answer was lost is recognised, not made again",
        [
            Edit(
                "ledger/outbox.py",
                "        if next(tries) and _exists(connection, ids):\n",
                "        if next(tries) < 0:\n",
            )
        ],
        [f"{LOST}::test_one_lost_answer_at_any_transaction_changes_nothing[full-3-after-commit]"],
    ),
    Bug(
        "complete-not-repeatable",
        "a run whose completion was not answered is completed once, and says so",
        [
            Edit(
                "ledger/runs.py",
                (
                    "            return before\n"
                    "        check_fence(connection, tenure)\n        check_seq(connection, tenure)\n"
                    '        connection.execute(sql("close_disproved")'
                ),
                (
                    "            tenure.fence\n"
                    "        check_fence(connection, tenure)\n        check_seq(connection, tenure)\n"
                    '        connection.execute(sql("close_disproved")'
                ),
            )
        ],
        [f"{LOST}::test_one_lost_answer_at_any_transaction_changes_nothing[full-3-after-commit]"],
    ),
    Bug(
        "staged-twice",
        "a page whose commit was not answered is staged once",
        [
            Edit(
                "ledger/staging.py",
                "        if found is not None:  #",
                "        if found is not None and not found:  #",
            )
        ],
        [f"{LOST}::test_one_lost_answer_at_any_transaction_changes_nothing[staged-3-after-commit]"],
    ),
    Bug(
        "books-counted-twice",
        "a transaction that has to be repeated counts anew, not twice",
        [
            Edit(
                "dispatch/emit.py",
                (
                    "        run.counts.due, run.counts.not_due = before.due, before.not_due  # a repeat"
                    " counts anew\n"
                    "        run.counts.set_aside, in_place = before.set_aside, 0\n"
                ),
                "",
            )
        ],
        [f"{LOST}::test_a_streamed_group_heals_too[full-before-commit]"],
    ),
    Bug(
        "second-sight-not-counted",
        "the books balance when a record is seen twice in a run",
        [
            Edit(
                "dispatch/emit.py",
                "run.counts.already_claimed += repeated + len(due) - opened.claimed",
                "run.counts.already_claimed += len(due) - opened.claimed",
            )
        ],
        [f"{SOURCE}::test_a_second_sight_of_one_occurrence_counts_as_already_claimed"],
    ),
]
