"""The floors: what the unavoidable parts cost by themselves, done the fastest way known here."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import obstore
import psycopg
from obstore.store import S3Store

from bench.probe import Usage
from bench.records import RECORDS_PER_GROUP, Shape, index_of, page_json, record_id
from ledger.canonical import packed_id
from ledger.ids import new_id
from ledger.store import connect_arguments

_PAGE = 1000
_AT_ONCE_BY_THREADS = 8
_AT_ONCE_BY_TASKS = 128
_OBJECT = os.urandom(750).hex().encode()  # as large as a group of 2.5 records
_CLAIMS = (
    "COPY claims (pipeline_id, booking_ns, record_id, generation, fingerprint, entry_id) FROM STDIN (FORMAT BINARY)"
)
_ENTRIES = (
    "COPY entries (id, window_id, run_id, opened_at, destination_id, generation, records_n, group_digest, "
    "content_hash, idempotency_key, group_json) FROM STDIN (FORMAT BINARY)"
)
_CLAIM_TYPES = ["int2", "int8", "bytea", "int2", "int8", "uuid"]
_ENTRY_TYPES = ["uuid", "int8", "uuid", "timestamptz", "int4", "int2", "int4", *["bytea"] * 3, "text"]
_GROUP = '{"MemberId":2002681,"PromotionEngineId":33,"ShopId":1062}'


def _entry_row(entry_id: UUID, now: datetime) -> tuple[Any, ...]:
    digest = hashlib.sha256(entry_id.bytes).digest()
    return (entry_id, 1, entry_id, now, 1, 0, 2, digest[:16], digest, digest, _GROUP)


def _copy(connection: psycopg.Connection[Any], statement: str, types: list[str], rows: list[tuple[Any, ...]]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)


def _rows(first: int, groups: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    now = datetime(2026, 9, 17, 16, tzinfo=UTC)
    entries = [_entry_row(new_id(), now) for _ in range(groups)]
    claims = [
        (1, index * 3_600_000, packed_id(record_id(index)), 0, index, entries[at % groups][0])
        for at, index in enumerate(range(first, first + _PAGE))
    ]
    return claims, entries


def _copy_rows(spec: Mapping[str, Any], usage: Usage) -> int:
    """Write the rows of claims and entries, and nothing else: no conflicts looked for, nothing confirmed."""
    groups = round(_PAGE / RECORDS_PER_GROUP)
    pages: int = spec["records"] // _PAGE
    with psycopg.connect(**connect_arguments(spec["database_url"])) as connection:
        for page in range(pages):
            claims, entries = _rows(page * _PAGE, groups)
            with usage.timed(), connection.transaction():
                _copy(connection, _CLAIMS, _CLAIM_TYPES, claims)
                _copy(connection, _ENTRIES, _ENTRY_TYPES, entries)
    return pages * groups


def _put_objects(spec: Mapping[str, Any], usage: Usage) -> int:
    """Store as many objects as there are groups: by a few threads, or with latency by many tasks."""
    groups: int = round(spec["records"] / RECORDS_PER_GROUP)
    store = S3Store("bench", region="us-east-1", endpoint=spec["endpoint_url"], client_options={"allow_http": True})
    attributes = {"Content-Type": "application/json", "idempotency-key": "0" * 64, "sha256": "0" * 64}

    def put(number: int) -> None:
        obstore.put(store, f"reward/{number:064x}.json", _OBJECT, attributes=attributes, use_multipart=False)

    async def put_each(numbers: Any) -> None:
        for number in numbers:
            await obstore.put_async(
                store, f"reward/{number:064x}.json", _OBJECT, attributes=attributes, use_multipart=False
            )

    async def put_all() -> None:
        numbers = iter(range(groups))
        await asyncio.gather(*(put_each(numbers) for _ in range(_AT_ONCE_BY_TASKS)))

    with usage.timed():
        if spec["latency_ms"]:
            asyncio.run(put_all())
        else:
            with ThreadPoolExecutor(_AT_ONCE_BY_THREADS) as pool:
                list(pool.map(put, range(groups)))
    return groups


class _Page(msgspec.Struct):
    Items: list[dict[str, dict[str, Any]]]


def _decode_pages(spec: Mapping[str, Any], usage: Usage) -> int:
    """Decode the pages from their bytes, and look at nothing in them."""
    shape = Shape(spec["records"])
    decoder = msgspec.json.Decoder(_Page)
    for first in range(0, shape.records, _PAGE):
        body = page_json(shape, first, _PAGE)
        with usage.timed():
            page = decoder.decode(body)
        assert index_of(page.Items[0]["Id"]["S"]) == first, "the page begins where it should"
    return round(shape.records / RECORDS_PER_GROUP)


def measure(spec: Mapping[str, Any]) -> dict[str, float]:
    """Do one of the unavoidable parts."""
    usage = Usage()
    groups = {"copy": _copy_rows, "put": _put_objects, "decode": _decode_pages}[spec["variant"]](spec, usage)
    return {**usage.figures(), "groups": groups, "records": spec["records"]}
