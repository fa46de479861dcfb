-- Guarantees: the temporary tables of a dry run know the pipeline's name and windows, and count where no ledger gets to.
ALTER TABLE pipelines ALTER COLUMN id RESTART WITH 16384;
ALTER TABLE destinations ALTER COLUMN id RESTART WITH 1073741824;
ALTER TABLE windows ALTER COLUMN id RESTART WITH 4611686018427387904;
ALTER TABLE events ALTER COLUMN id RESTART WITH 4611686018427387904;
ALTER TABLE findings ALTER COLUMN id RESTART WITH 4611686018427387904;
CREATE TEMPORARY TABLE stored_objects (
    bucket text, key text, bytes bigint NOT NULL, etag text NOT NULL, PRIMARY KEY (bucket, key)
);
CREATE TEMPORARY TABLE taken (at timestamptz NOT NULL);
INSERT INTO pipelines OVERRIDING SYSTEM VALUE SELECT * FROM {ledger}.pipelines WHERE name = {pipeline};
INSERT INTO destinations OVERRIDING SYSTEM VALUE
SELECT * FROM {ledger}.destinations WHERE pipeline_id IN (SELECT id FROM pipelines);
INSERT INTO windows OVERRIDING SYSTEM VALUE
SELECT * FROM {ledger}.windows WHERE pipeline_id IN (SELECT id FROM pipelines);
ANALYZE pipelines, destinations, windows
