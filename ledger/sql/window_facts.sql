-- What is known of a window before a reconcile touches it; no row when the ledger has never heard of it.
SELECT windows.held_reason, CASE WHEN held_at IS NOT NULL THEN coalesce(held_kind, 'guard') END,
       coalesce(windows.lease_until > ledger_now(), false), windows.completed_at IS NOT NULL,
       (SELECT extract(epoch FROM ledger_now() - max(coalesce(runs.finished_at, runs.started_at)))::float8
        FROM runs WHERE runs.window_id = windows.id AND runs.fence IS NOT NULL AND runs.cause <> 'reconcile')
FROM windows
WHERE windows.pipeline_id = %(pipeline_id)s AND windows.start_s = %(start_s)s
