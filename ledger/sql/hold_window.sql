-- Guarantees: a window that is not held is held from now on, whoever works on it; one that is held for another reason is
-- only when it is behind, since that must be mended first. What is being adopted, or was, stays as it is.
UPDATE windows SET held_at = coalesce(held_at, ledger_now()), held_reason = %(reason)s, held_kind = %(kind)s
WHERE id = %(id)s
  AND (held_at IS NULL OR (%(kind)s = 'behind' AND coalesce(held_kind, 'guard') IN ('guard', 'person')))
RETURNING 1
