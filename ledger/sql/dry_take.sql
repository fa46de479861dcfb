-- Guarantees: the temporary tables of a dry run hold what the ledger does of one window, as of one moment, and nothing of
-- another but the claims on the hour; with the entries of the neighbours that own such claims of this window.
CLOSE ALL;
TRUNCATE runs, pages, entries, payload_parts, open_attempts, attempts, staged_records, findings, events, stored_objects,
    taken;
INSERT INTO taken VALUES (ledger_now());
DELETE FROM windows WHERE pipeline_id = {pipeline_id} AND start_s BETWEEN {start_s} - 3600 AND {start_s} + 3600;
INSERT INTO windows OVERRIDING SYSTEM VALUE
SELECT * FROM {ledger}.windows
WHERE pipeline_id = {pipeline_id} AND start_s BETWEEN {start_s} - 3600 AND {start_s} + 3600;
DELETE FROM claims WHERE booking_ns % 3600000000000 <> 0;
INSERT INTO claims
SELECT * FROM {ledger}.claims WHERE pipeline_id = {pipeline_id} AND booking_ns BETWEEN {start_ns} AND {end_ns}
ON CONFLICT DO NOTHING;
INSERT INTO entries
SELECT * FROM {ledger}.entries
WHERE window_id = (SELECT id FROM windows WHERE pipeline_id = {pipeline_id} AND start_s = {start_s});
INSERT INTO entries
SELECT * FROM {ledger}.entries
WHERE id IN (SELECT entry_id FROM claims WHERE booking_ns IN ({start_ns}, {end_ns}))
ON CONFLICT DO NOTHING;
INSERT INTO runs
SELECT * FROM {ledger}.runs
WHERE window_id = (SELECT id FROM windows WHERE pipeline_id = {pipeline_id} AND start_s = {start_s});
INSERT INTO runs
SELECT * FROM {ledger}.runs WHERE id IN (SELECT run_id FROM entries)
ON CONFLICT DO NOTHING;
INSERT INTO pages
SELECT * FROM {ledger}.pages WHERE run_id IN (
    SELECT id FROM runs
    WHERE window_id = (SELECT id FROM windows WHERE pipeline_id = {pipeline_id} AND start_s = {start_s})
);
INSERT INTO payload_parts
SELECT * FROM {ledger}.payload_parts
WHERE window_id = (SELECT id FROM windows WHERE pipeline_id = {pipeline_id} AND start_s = {start_s});
INSERT INTO open_attempts SELECT * FROM {ledger}.open_attempts WHERE entry_id IN (SELECT id FROM entries);
INSERT INTO attempts SELECT * FROM {ledger}.attempts WHERE entry_id IN (SELECT id FROM entries);
INSERT INTO findings OVERRIDING SYSTEM VALUE
SELECT * FROM {ledger}.findings WHERE window_id IN (
    SELECT id FROM {ledger}.windows
    WHERE pipeline_id = {pipeline_id} AND start_s BETWEEN {start_s} - 3600 AND {start_s} + 3600
);
ANALYZE windows, runs, claims, entries, open_attempts, attempts, payload_parts, findings
