-- Of these object keys of one bucket, in their order, those that no entry refers to; without those that a finding tells
-- of, unless they are asked for.
SELECT object_key
FROM unnest(%(keys)s::text[], %(promises)s::bytea[]) AS stored (object_key, promise)
WHERE NOT EXISTS (SELECT 1 FROM entries WHERE idempotency_key = promise AND void_reason IS NULL)
  AND NOT EXISTS (SELECT 1 FROM entries WHERE idempotency_key = promise AND void_reason IS NOT NULL)
  AND (%(even_noted)s OR NOT EXISTS (
      SELECT 1 FROM findings
      WHERE findings.pipeline_id = %(pipeline_id)s AND kind = 'orphan_object'
        AND subject = convert_to(%(bucket)s || '/' || object_key, 'UTF8')))
ORDER BY object_key COLLATE "C"
