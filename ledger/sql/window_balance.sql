-- Tells what does not balance in one window, as of one moment: a row for each check whose two numbers differ. Counted
-- anew from the rows themselves, by sets: nothing here trusts what a report says.
WITH promised AS MATERIALIZED (
    SELECT id, run_id, destination_id, records_n, void_reason IS NOT NULL AS void
    FROM entries WHERE window_id = %(window_id)s
), unfinished AS MATERIALIZED (
    SELECT DISTINCT entry_id FROM payload_parts WHERE window_id = %(window_id)s
), claimed AS MATERIALIZED (
    SELECT entry_id, count(*) AS claims FROM claims
    WHERE pipeline_id = %(pipeline_id)s AND booking_ns BETWEEN %(start_ns)s AND %(end_ns)s GROUP BY entry_id
), tried AS (
    SELECT entry_id, bool_or(outcome IN ('accepted', 'received', 'vouched')) AS proven
    FROM all_attempts WHERE entry_id IN (SELECT id FROM promised) GROUP BY entry_id
), judged AS (
    SELECT records_n, void, coalesce(claims, 0) AS claims, CASE WHEN void THEN 0 ELSE records_n END AS owned,
           unfinished.entry_id IS NOT NULL AS unfinished, tried.entry_id IS NOT NULL AS tried,
           coalesce(proven, false) AS proven,
           run_id IN (SELECT id FROM runs WHERE window_id = %(window_id)s)
               AND destination_id IN (SELECT id FROM destinations WHERE pipeline_id = %(pipeline_id)s) AS rooted
    FROM promised
    LEFT JOIN unfinished ON unfinished.entry_id = promised.id
    LEFT JOIN claimed ON claimed.entry_id = promised.id
    LEFT JOIN tried ON tried.entry_id = promised.id
), counted AS (
    SELECT count(*) AS entries, count(*) FILTER (WHERE void) AS void,
           count(*) FILTER (WHERE NOT void AND unfinished) AS begun,
           count(*) FILTER (WHERE NOT void AND NOT unfinished) AS finished,
           count(*) FILTER (WHERE NOT void AND NOT unfinished AND proven) AS confirmed,
           count(*) FILTER (WHERE void AND unfinished) AS void_kept,
           coalesce(sum(owned), 0) AS records, coalesce(sum(claims), 0) AS claims,
           count(*) FILTER (WHERE claims = owned) AS whole, count(*) FILTER (WHERE rooted) AS rooted
    FROM judged
), strange AS MATERIALIZED (
    SELECT claimed.entry_id FROM claimed LEFT JOIN promised ON promised.id = claimed.entry_id WHERE promised.id IS NULL
), stray AS (
    SELECT (SELECT count(*) FROM strange
            WHERE NOT EXISTS (SELECT 1 FROM entries WHERE entries.id = strange.entry_id)) AS claims,
           (SELECT count(*) FROM unfinished WHERE entry_id NOT IN (SELECT id FROM promised)) AS payloads,
           (SELECT count(*) FROM findings
            WHERE window_id = %(window_id)s AND pipeline_id <> %(pipeline_id)s) AS findings
), books AS (
    SELECT count(*) AS completed,
           count(*) FILTER (WHERE evaluated = outside + not_due + set_aside + due
                            AND (due = already_claimed + claimed OR cause = 'reconcile')) AS balanced
    FROM runs WHERE window_id = %(window_id)s AND outcome = 'completed'
)
SELECT checks.name, checks.expected::bigint, checks.found::bigint
FROM counted, stray, books CROSS JOIN LATERAL (VALUES
    (1, 'entries_by_state', entries, begun + confirmed + void),
    (2, 'claims', records, counted.claims),
    (3, 'entries_with_their_claims', entries, whole),
    (4, 'runs_whose_books_balance', completed, balanced),
    (5, 'finished_entries_with_proof', finished, confirmed),
    (6, 'void_entries_with_payload', 0, void_kept),
    (7, 'entries_of_a_run_and_destination', entries, rooted),
    (8, 'claims_without_entry', 0, stray.claims),
    (9, 'payloads_without_entry', 0, stray.payloads),
    (10, 'findings_of_another_pipeline', 0, stray.findings)
) AS checks (place, name, expected, found)
WHERE checks.expected <> checks.found
ORDER BY checks.place
