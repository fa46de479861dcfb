"""Bugs in an entry's way from its promise to its proof."""

from tests.fault.planted.bugs.catchers import ANSWERS, CANONICAL, INVARIANTS, KILLED, QUEUES, REDO_BROKEN_OFF, SOURCE
from tests.fault.planted.planting import Bug, Edit

BUGS = [
    Bug(
        "send-before-open",
        "nothing is uploaded or sent without a committed entry that names those records",
        [
            Edit(
                "dispatch/emit.py",
                (
                    "    opened = outbox.open_entries(run.store, run.tenure, groups, run.destinations) if"
                    " groups else outbox.Opened()\n"
                ),
                (
                    "    early = [\n"
                    "        outbox._entry(run.tenure, outbox.new_id(), one, [r.body for r in one.records],"
                    " run.destinations, 0)\n"
                    "        for one in groups\n"
                    "    ]\n"
                    '    bodies = {e.id: b",".join(r.body for r in one.records) for e, one in zip(early,'
                    " groups, strict=True)}\n"
                    "    _send(run, _upload(run, early, bodies)) if early else None\n"
                    "    opened = outbox.open_entries(run.store, run.tenure, groups, run.destinations) if"
                    " groups else outbox.Opened()\n"
                ),
            )
        ],
        [f"{KILLED}::test_nothing_is_stored_or_sent_before_it_is_promised"],
    ),
    Bug(
        "upload-before-open",
        "nothing is uploaded without a committed entry; an object that nobody owns is left by a crash",
        [
            Edit(
                "dispatch/emit.py",
                (
                    "    opened = outbox.open_entries(run.store, run.tenure, groups, run.destinations) if"
                    " groups else outbox.Opened()\n"
                ),
                (
                    "    early = [\n"
                    "        outbox._entry(run.tenure, outbox.new_id(), one, [r.body for r in one.records],"
                    " run.destinations, 0)\n"
                    "        for one in groups\n"
                    "    ]\n"
                    '    bodies = {e.id: b",".join(r.body for r in one.records) for e, one in zip(early,'
                    " groups, strict=True)}\n"
                    "    _upload(run, early, bodies) if early else None\n"
                    "    opened = outbox.open_entries(run.store, run.tenure, groups, run.destinations) if"
                    " groups else outbox.Opened()\n"
                ),
            )
        ],
        [f"{KILLED}::test_nothing_is_stored_or_sent_before_it_is_promised"],
    ),
    Bug(
        "send-before-mark",
        "a send is marked before it is made: from there on a crash means that it is unknown",
        [
            Edit(
                "dispatch/emit.py",
                (
                    "        marked = outbox.mark_sending(run.store, run.tenure, waiting)\n"
                    "        answers = _send(run, marked)\n"
                ),
                (
                    "        told = {entry.id: answer for entry, answer in _send(run, waiting)}\n"
                    "        marked = outbox.mark_sending(run.store, run.tenure, waiting)\n"
                    "        answers = [(entry, told[entry.id]) for entry in marked]\n"
                ),
            )
        ],
        [f"{KILLED}::test_killed_at_any_transaction[full-before-commit]"],
    ),
    Bug(
        "unmarked-sent",
        "only the entries that mark gave back are sent",
        [
            Edit(
                "dispatch/emit.py",
                "        answers = _send(run, marked)\n",
                (
                    "        answers = _send(run, [msgspec.structs.replace(one, attempts=one.attempts + 1)"
                    " for one in waiting])\n"
                ),
            )
        ],
        [f"{QUEUES}::test_what_is_confirmed_while_it_is_recovered_is_not_sent"],
    ),
    Bug(
        "confirmed-without-proof",
        "only an accepted try confirms an entry",
        [Edit("ledger/sql/record_answers.sql", ("\n  AND proven.outcome = 'accepted'"), "")],
        [
            f"{INVARIANTS}::test_a_stale_view_of_an_entry_marks_nothing",
            f"{QUEUES}::test_a_failed_message_is_tried_again",
        ],
    ),
    Bug(
        "unknown-taken-as-failed",
        "a send without an answer is unknown, neither failed nor taken",
        [
            Edit(
                "dispatch/aws/queues.py",
                'SendAnswer("unknown", error=f"no answer:',
                'SendAnswer("failed", error=f"no answer:',
            )
        ],
        [f"{QUEUES}::test_a_time_out_after_the_effect"],
    ),
    Bug(
        "unknown-taken-as-accepted",
        "a send without an answer proves nothing",
        [
            Edit(
                "dispatch/aws/queues.py",
                'SendAnswer("unknown", error=f"no answer:',
                'SendAnswer("accepted", message_id="", error=f"no answer:',
            )
        ],
        [f"{QUEUES}::test_what_was_lost_before_the_effect_is_one_message_although_we_cannot_know"],
    ),
    Bug(
        "server-error-taken-as-failed",
        "an error of the service itself may come after the effect",
        [
            Edit(
                "dispatch/aws/queues.py",
                ('            return [SendAnswer("unknown", error=text)] * len(messages)\n        return'),
                ('            return [SendAnswer("failed", error=text)] * len(messages)\n        return'),
            )
        ],
        [f"{QUEUES}::test_an_error_of_the_service_may_come_after_the_effect"],
    ),
    Bug(
        "omitted-taken-as-accepted",
        "a message that the answer does not mention may or may not have been taken",
        [
            Edit(
                "dispatch/aws/queues.py",
                'SendAnswer("unknown", error="the answer does not mention this message")',
                'SendAnswer("accepted", message_id="")',
            )
        ],
        [f"{ANSWERS}::test_what_became_of_a_message"],
    ),
    Bug(
        "failed-taken-as-refused",
        "what failed for now is tried again, and is not void",
        [
            Edit(
                "dispatch/aws/queues.py",
                'return SendAnswer("refused" if for_good else "failed", error=text)',
                'return SendAnswer("refused", error=text)',
            )
        ],
        [f"{ANSWERS}::test_what_became_of_a_message"],
    ),
    Bug(
        "failed-taken-as-accepted",
        "a message that the queue did not take is not confirmed",
        [
            Edit(
                "dispatch/aws/queues.py",
                'return SendAnswer("refused" if for_good else "failed", error=text)',
                'return SendAnswer("refused" if for_good else "accepted", error=text)',
            )
        ],
        [f"{ANSWERS}::test_what_became_of_a_message"],
    ),
    Bug(
        "confirmed-sent-again",
        "what was proven confirmed is never sent again",
        [
            Edit(
                "ledger/sql/mark_sending.sql",
                ("WHERE wanted.id IN (SELECT entry_id FROM unfinished)\n  AND NOT EXISTS"),
                "WHERE NOT EXISTS",
            )
        ],
        [f"{INVARIANTS}::test_case_6_what_is_confirmed_meanwhile_is_not_sent_again"],
    ),
    Bug(
        "resend-not-reported",
        "an entry that was sent more than once is a finding",
        [Edit("ledger/outbox.py", "        _note_repeated(connection, tenure, accepted)\n", "")],
        [f"{QUEUES}::test_a_time_out_after_the_effect"],
    ),
    Bug(
        "void-keeps-its-claims",
        "a void entry frees its claims in the same transaction",
        [Edit("ledger/sql/void_entries.sql", "AND claims.entry_id = voided.id", "AND claims.entry_id <> voided.id")],
        [f"{INVARIANTS}::test_a_void_entry_frees_its_claims_and_stays_void"],
    ),
    Bug(
        "sent-made-void",
        "what may have been sent keeps its claims",
        [Edit("ledger/outbox.py", 'reason, unless=["accepted", "unknown"])', "reason, unless=[])")],
        [f"{INVARIANTS}::test_what_may_have_been_sent_is_not_made_void"],
    ),
    Bug(
        "run-completed-too-early",
        "a run is completed only in a transaction that sees nothing of its window unfinished",
        [
            Edit(
                "ledger/sql/complete_run.sql",
                ("\n      AND NOT EXISTS (SELECT 1 FROM payload_parts WHERE window_id = %(window_id)s)"),
                "",
            )
        ],
        [f"{INVARIANTS}::test_a_run_and_a_page_wait_for_what_is_unfinished"],
    ),
    Bug(
        "page-done-too-early",
        "a page is done only in a statement that sees nothing of its window unfinished",
        [
            Edit(
                "ledger/sql/finish_page.sql",
                ("\n  AND NOT EXISTS (SELECT 1 FROM payload_parts WHERE window_id = %(window_id)s)"),
                "",
            )
        ],
        [f"{INVARIANTS}::test_a_run_and_a_page_wait_for_what_is_unfinished"],
    ),
    Bug(
        "recover-skipped",
        "a run first finishes what an earlier one has begun",
        [Edit("dispatch/dispatcher.py", "    recover(run)\n", "")],
        [f"{KILLED}::test_killed_at_any_transaction[full-after-commit]"],
    ),
    Bug(
        "recovered-though-not-due",
        "a recovered entry that was never sent, and whose records are no longer due, is void",
        [
            Edit(
                "dispatch/emit.py",
                "if run.verify_due and not entry.unproven and not entry.generation and not still_due(run, entry):",
                "if not run.verify_due and not still_due(run, entry):",
            )
        ],
        [f"{SOURCE}::test_a_recovered_entry_whose_records_are_no_longer_due_is_void"],
    ),
    Bug(
        "redo-voided-by-a-recovery",
        "what a redo has opened is finished as it is: a person wanted it",
        [Edit("dispatch/emit.py", "and not entry.generation and not still_due", "and not still_due")],
        [f"{REDO_BROKEN_OFF}::test_a_dispatch_finishes_what_an_apply_left"],
    ),
    Bug(
        "receipt-not-asked",
        "a receipt proves the send: what a consumer has taken up is not sent again",
        [Edit("dispatch/emit.py", "    run.counts.recovered += outbox.prove_received(run.store, run.tenure)\n", "")],
        [f"{QUEUES}::test_what_a_consumer_has_taken_up_is_not_sent_again"],
    ),
    Bug(
        "deduplicated-by-content",
        "a FIFO queue must not swallow a redo: its de-duplication id knows the generation",
        [
            Edit(
                "dispatch/emit.py",
                "one.group_digest.hex(), one.idempotency_key.hex())",
                "one.group_digest.hex(), one.content_hash.hex())",
            )
        ],
        [f"{QUEUES}::test_a_fifo_queue_gets_group_and_deduplication_ids"],
    ),
    Bug(
        "key-without-generation",
        "a redo has an idempotency key of its own",
        [
            Edit(
                "ledger/canonical.py",
                "[pipeline, window_start, group.hex(), content.hex(), generation]",
                "[pipeline, window_start, group.hex(), content.hex(), 0]",
            )
        ],
        [f"{CANONICAL}::test_the_idempotency_key"],
    ),
]
