-- Guarantees: one row for each pipeline and kind of fence, which only grows. Nothing is counted of a pipeline or a job
-- that the ledger does not know, nor of a job that was cancelled: nobody else has taken that.
INSERT INTO refusals AS counted (pipeline_id, kind, refused, last_at)
SELECT pipelines.id, %(kind)s, 1, ledger_now()
FROM pipelines
WHERE pipelines.name = %(pipeline)s OR pipelines.id = (
    SELECT pipeline_id FROM jobs WHERE jobs.id = %(job_id)s AND jobs.status <> 'cancelled'
)
ON CONFLICT (pipeline_id, kind) DO UPDATE SET refused = counted.refused + 1, last_at = EXCLUDED.last_at
