-- Guarantees: one row per (pipeline, kind, subject) however often it is seen; one that was closed or repaired opens
-- again, one that a person acknowledged stays acknowledged until it is repaired.
INSERT INTO findings (pipeline_id, window_id, kind, cause, subject, record_id, entry_id, object_key, state, repair,
                      detail, first_seen_at, last_seen_at, last_run_id, acknowledged_by, acknowledged_reason)
SELECT %(pipeline_id)s, %(window_id)s, %(kind)s, seen.cause, seen.subject, seen.record_id, seen.entry_id,
       seen.object_key, seen.state, seen.repair, seen.detail, ledger_now(), ledger_now(), %(run_id)s,
       CASE WHEN seen.state = 'acknowledged' THEN 'dispatch-ledger' END,
       CASE WHEN seen.state = 'acknowledged' THEN %(acknowledged_reason)s END
FROM unnest(%(causes)s::text[], %(subjects)s::bytea[], %(record_ids)s::bytea[], %(entry_ids)s::uuid[],
            %(object_keys)s::text[], %(states)s::text[], %(repairs)s::text[], %(details)s::text[])
     AS seen (cause, subject, record_id, entry_id, object_key, state, repair, detail)
ORDER BY seen.subject
ON CONFLICT (pipeline_id, kind, subject) DO UPDATE
SET window_id = EXCLUDED.window_id, cause = EXCLUDED.cause, detail = EXCLUDED.detail, entry_id = EXCLUDED.entry_id,
    last_seen_at = EXCLUDED.last_seen_at, last_run_id = EXCLUDED.last_run_id, closed_at = NULL,
    repair = EXCLUDED.repair,
    acknowledged_by = coalesce(findings.acknowledged_by, EXCLUDED.acknowledged_by),
    acknowledged_reason = coalesce(findings.acknowledged_reason, EXCLUDED.acknowledged_reason),
    state = CASE WHEN findings.state = 'acknowledged' AND EXCLUDED.state <> 'repaired' THEN 'acknowledged'
                 ELSE EXCLUDED.state END
RETURNING subject, id
