-- The starts, oldest first, of closed windows between the bounds that no run has completed.
SELECT hour.start_s
FROM generate_series(%(first_s)s::bigint, %(last_s)s::bigint, 3600) AS hour (start_s)
WHERE NOT EXISTS (SELECT 1 FROM windows WHERE windows.pipeline_id = %(pipeline_id)s
                  AND windows.start_s = hour.start_s AND windows.completed_at IS NOT NULL)
ORDER BY hour.start_s
