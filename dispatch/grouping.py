"""From due records to whole groups in order. Pure."""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from dispatch.judging import Rules, group_values
from ledger.canonical import canonical_json, group_digest
from ledger.facts import Group, Record

_BY_GROUP = attrgetter("group_key")
_BY_ORDER = attrgetter("group_key", "order_key")


def group_records(records: Iterable[Record], rules: Rules) -> list[Group]:
    """Sort records into groups, in the order of the group-by values; inside a group in payload order."""
    groups = []
    for _, members in groupby(sorted(records, key=_BY_ORDER), key=_BY_GROUP):
        groups.append(group_of(list(members), rules))
    return groups


def group_of(members: list[Record], rules: Rules) -> Group:
    """Return the group that `members` (not empty, all of one group key, in order) belong to."""
    values, route = group_values(members[0].body, rules)
    return Group(
        digest=group_digest(values),
        values_json=canonical_json(dict(zip(rules.group_by, values, strict=True))),
        route=route,
        records=members,
    )


def distinct(records: Iterable[Record]) -> tuple[list[Record], int]:
    """Drop later sightings of the same occurrence; return the rest and how many were dropped."""
    seen: dict[tuple[int, str], Record] = {}
    total = 0
    for record in records:
        total += 1
        seen.setdefault((record.booking_ns, record.record_id), record)
    return list(seen.values()), total - len(seen)
