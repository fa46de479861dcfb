-- Tells of each window of a pipeline that starts in a range, oldest first, its state and what it amounts to. Whoever
-- shows a number of a window takes it from here. Entries are counted by window; only unfinished ones are looked at.
WITH chosen AS MATERIALIZED (
    SELECT windows.* FROM windows JOIN pipelines ON pipelines.id = windows.pipeline_id
    WHERE pipelines.name = %(pipeline)s AND windows.start_s >= %(first_s)s AND windows.start_s < %(end_s)s
), promised AS (
    SELECT window_id, count(*) AS entries, count(void_reason) AS void,
           sum(records_n) FILTER (WHERE void_reason IS NULL) AS records
    FROM entries WHERE window_id IN (SELECT id FROM chosen) GROUP BY window_id
), unfinished AS MATERIALIZED (
    SELECT DISTINCT window_id, entry_id FROM payload_parts WHERE window_id IN (SELECT id FROM chosen)
), tried AS (
    SELECT DISTINCT entry_id FROM all_attempts WHERE entry_id IN (SELECT entry_id FROM unfinished)
), begun AS (
    SELECT unfinished.window_id, count(entries.id) FILTER (WHERE tried.entry_id IS NULL) AS pending,
           count(entries.id) FILTER (WHERE tried.entry_id IS NOT NULL) AS sending
    FROM unfinished
    LEFT JOIN entries ON entries.id = unfinished.entry_id AND entries.window_id = unfinished.window_id
        AND entries.void_reason IS NULL
    LEFT JOIN tried ON tried.entry_id = unfinished.entry_id
    GROUP BY unfinished.window_id
), last_run AS (
    SELECT DISTINCT ON (window_id) window_id, coalesce(outcome = 'completed', false) AS completed
    FROM runs WHERE window_id IN (SELECT id FROM chosen) AND fence IS NOT NULL AND cause IN ('schedule', 'manual')
    ORDER BY window_id, fence DESC, started_at DESC
), seen AS (
    SELECT window_id, count(*) AS open_findings FROM findings
    WHERE window_id IN (SELECT id FROM chosen) AND state = 'open' GROUP BY window_id
)
SELECT chosen.id, chosen.start_s, chosen.held_reason, chosen.held_at,
       CASE WHEN chosen.held_at IS NOT NULL THEN coalesce(chosen.held_kind, 'guard') END AS held_kind, chosen.seq,
       chosen.completed_at,
       CASE WHEN chosen.held_at IS NOT NULL THEN 'held'
            WHEN chosen.lease_until > ledger_now() THEN 'running'
            WHEN chosen.completed_at IS NOT NULL AND last_run.completed AND begun.window_id IS NULL THEN 'dispatched'
            WHEN last_run.window_id IS NOT NULL THEN 'incomplete'
            ELSE 'not_dispatched' END AS state,
       coalesce(entries, 0) AS entries, coalesce(pending, 0) AS pending, coalesce(sending, 0) AS sending,
       coalesce(entries, 0) - coalesce(pending, 0) - coalesce(sending, 0) - coalesce(void, 0) AS confirmed,
       coalesce(void, 0) AS void, coalesce(records, 0) AS records, coalesce(open_findings, 0) AS open_findings,
       chosen.verified_at, chosen.verified_due, chosen.verified_claimed
FROM chosen
LEFT JOIN promised ON promised.window_id = chosen.id
LEFT JOIN begun ON begun.window_id = chosen.id
LEFT JOIN last_run ON last_run.window_id = chosen.id
LEFT JOIN seen ON seen.window_id = chosen.id
ORDER BY chosen.start_s
