-- Guarantees: only an open finding becomes acknowledged, once, with who said so and why; a repeat changes nothing.
UPDATE findings SET state = 'acknowledged', acknowledged_by = %(by)s, acknowledged_reason = %(reason)s
FROM pipelines
WHERE findings.id = %(id)s AND findings.state = 'open'
  AND pipelines.id = findings.pipeline_id AND pipelines.name = %(pipeline)s
