"""What is read back: documents however they are cut, keys merged in byte order, ids packed and unpacked."""

import json
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from dispatch.aws.objects import ListedObject
from ledger.canonical import canonical_json, fingerprint, packed_id, unpacked_id
from ledger.evidence import PromisedObject
from ledger.facts import StoredObject
from ledger.keys import object_key, parse_object_key
from reconcile.documents import DocumentReader
from reconcile.objects import Pair, differing, in_chunks, lacks_its_object, merge_by_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"records":[', "\\", '\\"', "]}", "{", ",", "records"]
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORD = st.dictionaries(TEXT, VALUE, max_size=4)


@given(
    group=st.dictionaries(TEXT | st.just("records"), VALUE, max_size=3),
    records=st.lists(RECORD, max_size=5),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
@example(group={"records": [1, [2]]}, records=[{"records": [{}]}], cuts=[1])
def test_a_document_comes_back_record_by_record(
    group: dict[str, object], records: list[dict[str, object]], cuts: list[int]
) -> None:
    document = {"format": 1, "group": group, "job": 'a"b', "records": records, "window": {"start": "x"}}
    raw = canonical_json(document)
    pieces, at, turn = [], 0, 0
    while at < len(raw):
        pieces.append(raw[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    reader = DocumentReader(pieces)
    assert list(reader) == [canonical_json(one) for one in records]
    assert reader.frame is not None
    whole = {name: json.loads(bytes(value)) for name, value in reader.frame.items()}
    assert whole == document | {"records": []}
    assert set(reader.opening) == {"format", "group", "job", "records"}


@given(st.binary(max_size=60), st.integers(1, 9))
@example(b'{"records":[1', 1)
@example(b'{"records":[]}x', 3)
def test_whatever_is_no_document_has_no_frame_or_is_one(raw: bytes, size: int) -> None:
    reader = DocumentReader([raw[at : at + size] for at in range(0, len(raw), size)])
    found = list(reader)
    if reader.frame is not None:
        assert json.loads(raw)["records"] == [json.loads(one) for one in found]


KEY = st.text(st.sampled_from("aé\U0001f600b/-.1"), min_size=1, max_size=4)
NOW = datetime(2026, 9, 17, tzinfo=UTC)


def promise(number: int) -> PromisedObject:
    return PromisedObject(UUID(int=number), bytes(16), bytes(32), 0, StoredObject(1, "e") if number % 2 else None)


@given(st.sets(KEY), st.lists(KEY))
def test_keys_are_merged_as_a_dictionary_would(listed: set[str], wanted: list[str]) -> None:
    ordered = sorted(listed, key=lambda key: key.encode())
    promised = [(key, promise(at)) for at, key in enumerate(sorted(wanted, key=lambda key: key.encode()))]
    pairs = list(merge_by_key((ListedObject(key, StoredObject(1, "e"), NOW) for key in ordered), iter(promised)))
    assert [pair.key for pair in pairs] == sorted(listed | set(wanted), key=lambda key: key.encode())
    for pair in pairs:
        assert (pair.listed is not None) == (pair.key in listed)
        assert pair.promised == [one for key, one in promised if key == pair.key]
        sent = any(one.sent for one in pair.promised)
        assert lacks_its_object(pair) == (sent and pair.key not in listed)


@given(
    st.lists(st.tuples(KEY, st.sampled_from(["listed", "promised", "both", "altered"])), max_size=12), st.integers(1, 4)
)
def test_compared_in_chunks_the_same_differs(drawn: list[tuple[str, str]], size: int) -> None:
    keys = sorted(dict(drawn).items())
    listed = [
        ListedObject(key, StoredObject(1 + (how == "altered"), "e"), NOW) for key, how in keys if how != "promised"
    ]
    promised = [(key, promise(1)) for key, how in keys if how != "listed"]
    every = list(merge_by_key(listed, promised))
    some = list(differing(in_chunks(listed, size), in_chunks(promised, size)))
    agreed = every[: len(every) - len(some)]
    assert some == every[len(agreed) :]
    assert not any(lacks_its_object(pair) or not pair.promised for pair in agreed)
    assert not some or [how for _, how in keys] != ["both"] * len(keys)


def test_an_altered_object_is_lacking() -> None:
    for stored in (StoredObject(2, "e"), StoredObject(1, "f")):
        assert lacks_its_object(Pair("k", ListedObject("k", stored, NOW), [promise(1)]))


@given(st.text() | st.uuids().map(str) | st.uuids().map(lambda one: str(one).upper()))
@example("\ud800")
@example("\xff" + "a" * 16)
def test_ids_are_packed_and_come_back(record_id: str) -> None:
    packed = packed_id(record_id)
    assert unpacked_id(packed) == record_id
    assert len(packed) <= len(record_id.encode("utf-8", "surrogatepass"))


@given(st.uuids(), st.text())
def test_no_other_id_is_packed_to_the_same_bytes(one: UUID, other: str) -> None:
    assert (packed_id(str(one)) == packed_id(other)) == (str(one) == other)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32), st.integers(0, 32767), st.text())
def test_a_key_says_what_it_was_made_of(digest: bytes, content: bytes, generation: int, noise: str) -> None:
    key = object_key("p/x/2026/09/17/15/", digest, content, generation)
    assert parse_object_key(key) == (digest, content, generation)
    assert parse_object_key(noise) is None
    if noise:
        assert parse_object_key(key + noise) is None


@given(RECORD, TEXT, VALUE, VALUE)
def test_a_fingerprint_leaves_out_one_member_and_no_other(
    record: dict[str, object], name: str, before: object, after: object
) -> None:
    one, other = (canonical_json(record | {name: value}) for value in (before, after))
    assert fingerprint(one, name) == fingerprint(other, name)
    assert (fingerprint(one, None) == fingerprint(other, None)) == (one == other)
    assert -(2**63) <= fingerprint(one, None) < 2**63
