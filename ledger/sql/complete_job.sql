-- Completes a job for the one who holds its claim, and creates the job that follows it: both or neither.
WITH completed AS (
    UPDATE jobs SET status = 'completed', result = %(result)s, error = NULL, done = %(done)s, total = %(total)s,
        finished_at = ledger_now(), expires_at = NULL, follow_up = NULL
    WHERE id = %(id)s AND status = 'processing' AND claim = %(claim)s
    RETURNING id, pipeline_id, created_by
), dropped AS (
    DELETE FROM job_parts WHERE job_id IN (SELECT id FROM completed)
), following AS (
    INSERT INTO jobs (id, pipeline_id, kind, params, queue, status, follow_up, follows, created_by, created_at, relay_at)
    SELECT %(next_id)s, pipeline_id, %(next_kind)s, %(next_params)s, %(next_queue)s, 'pending', %(next_follow_up)s, id,
           created_by, ledger_now(), ledger_now()
    FROM completed WHERE %(next_kind)s::text IS NOT NULL
)
SELECT id FROM completed
