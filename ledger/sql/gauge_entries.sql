-- Tells of a pipeline how many entries are unfinished and the age in seconds of the oldest; looks only at unfinished ones.
SELECT count(*) AS unfinished, extract(epoch FROM ledger_now() - min(entries.opened_at))::float8 AS oldest_s
FROM (SELECT DISTINCT window_id, entry_id FROM payload_parts) AS waiting
JOIN entries ON entries.id = waiting.entry_id
JOIN windows ON windows.id = waiting.window_id
JOIN pipelines ON pipelines.id = windows.pipeline_id
WHERE pipelines.name = %(pipeline)s
