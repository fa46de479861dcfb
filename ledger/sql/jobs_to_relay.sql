-- Takes jobs whose id must be put on a queue, or on it again, for half a minute, so that two relays do not both send it.
UPDATE jobs SET relay_at = ledger_now() + interval '30 seconds'
WHERE id IN (SELECT waiting.id FROM jobs AS waiting JOIN pipelines ON pipelines.id = waiting.pipeline_id
             WHERE pipelines.name = %(pipeline)s AND waiting.status IN ('pending', 'processing')
               AND waiting.relay_at <= ledger_now()
               AND (waiting.status = 'pending' OR waiting.expires_at <= ledger_now() - %(lost_after)s::interval)
             ORDER BY waiting.relay_at LIMIT %(limit)s FOR UPDATE OF waiting SKIP LOCKED)
RETURNING id, queue
