-- Counts a pipeline's jobs that have not ended, by queue and status, with the age in seconds of the oldest. One row each.
SELECT queue, status, count(*) AS jobs, extract(epoch FROM ledger_now() - min(created_at))::float8 AS oldest_s
FROM jobs JOIN pipelines ON pipelines.id = pipeline_id
WHERE pipelines.name = %(pipeline)s AND status IN ('pending', 'processing')
GROUP BY queue, status
