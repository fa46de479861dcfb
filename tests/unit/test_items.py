"""DynamoDB items as plain data, and record ids there and back."""

from typing import Any

import pytest

from dispatch.items import Item, TableSchema, key_of, plain, plain_item, record_id
from ledger.canonical import canonical_json


def encoded(value: dict[str, Any]) -> str:
    return canonical_json(plain(value)).decode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"S": "text"}, '"text"'),
        ({"S": ""}, '""'),
        ({"S": "\u0000"}, '"\\u0000"'),
        ({"N": "1.50"}, "1.5"),
        ({"N": "12345678901234567890123456789012345678"}, "12345678901234567890123456789012345678"),
        ({"B": "AP8="}, '"AP8="'),
        ({"BOOL": True}, "true"),
        ({"BOOL": False}, "false"),
        ({"NULL": True}, "null"),
        ({"L": []}, "[]"),
        ({"L": [{"N": "1"}, {"S": "a"}, {"L": [{"NULL": True}]}]}, '[1,"a",[null]]'),
        ({"M": {}}, "{}"),
        ({"M": {"b": {"N": "1"}, "a": {"M": {"c": {"SS": ["y", "x"]}}}}}, '{"a":{"c":["x","y"]},"b":1}'),
        ({"SS": ["b", "a", "B", "ü", "z"]}, '["B","a","b","z","ü"]'),
        ({"SS": ["a", "a!", 'a"']}, '["a!","a","a\\""]'),
        ({"NS": ["10", "9", "-1", "1.0"]}, "[-1,1,10,9]"),
        ({"NS": ["1E2", "99"]}, "[100,99]"),
        ({"BS": ["/w==", "AA=="]}, '["/w==","AA=="]'),
    ],
)
def test_every_type_as_plain_json(value: dict[str, Any], text: str) -> None:
    """Sets sort by the bytes of each member's canonical JSON, quotes included."""
    if "SS" in value and 'a"' in value["SS"]:
        text = "[" + ",".join(sorted(('"a"', '"a!"', '"a\\""'), key=str.encode)) + "]"
    assert encoded(value) == text


def test_a_set_has_one_order_whatever_order_it_came_in() -> None:
    for kind, members in {
        "SS": ["c", "a", "é", "😀", "\ue000"],
        "NS": ["3", "20", "-5", "0.5"],
        "BS": ["AA==", "/w=="],
    }.items():
        assert encoded({kind: members}) == encoded({kind: members[::-1]})


def test_an_item() -> None:
    assert plain_item({"Id": {"S": "r"}, "n": {"N": "1"}}) == {"Id": "r", "n": 1}


@pytest.mark.parametrize("value", [{"N": "abc"}, {"N": ""}, {"X": 1}, {"NS": ["1", "NaN"]}])
def test_what_is_no_item_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        plain(value)


SCHEMAS = [
    (TableSchema({"Id": "S"}, projects_all=True), {"Id": {"S": "r1"}}, "r1"),
    (TableSchema({"Id": "S"}, projects_all=True), {"Id": {"S": '{"Id":"r1"}'}}, '{"Id":"r1"}'),
    (TableSchema({"Id": "S"}, projects_all=True), {"Id": {"S": "\u0000😀\\ud800"}}, "\u0000😀\\ud800"),
    (TableSchema({"Id": "N"}, projects_all=True), {"Id": {"N": "7"}}, '{"Id":7}'),
    (TableSchema({"Id": "N"}, projects_all=True), {"Id": {"N": "-0.5"}}, '{"Id":-0.5}'),
    (
        TableSchema({"Id": "N"}, projects_all=True),
        {"Id": {"N": "12345678901234567890123456789012345678"}},
        '{"Id":12345678901234567890123456789012345678}',
    ),
    (TableSchema({"Id": "B"}, projects_all=True), {"Id": {"B": "AP8="}}, '{"Id":"AP8="}'),
    (
        TableSchema({"Shard": "S", "At": "N"}, projects_all=True),
        {"Shard": {"S": 'a"\u0000ü😀'}, "At": {"N": "3"}},
        '{"At":3,"Shard":"a\\"\\u0000ü😀"}',
    ),
    (TableSchema({"a": "S", "b": "S"}, projects_all=True), {"a": {"S": ""}, "b": {"S": "x"}}, '{"a":"","b":"x"}'),
    (
        TableSchema({"\ufb33": "S", "😀": "B"}, projects_all=True),
        {"\ufb33": {"S": "x"}, "😀": {"B": "AA=="}},
        '{"😀":"AA==","\ufb33":"x"}',
    ),
]


@pytest.mark.parametrize(("schema", "key", "identity"), SCHEMAS)
def test_a_record_id_there_and_back(schema: TableSchema, key: Item, identity: str) -> None:
    assert record_id({**key, "other": {"S": "x"}}, schema) == identity
    assert key_of(identity, schema) == key


def test_spellings_of_a_number_are_one_key() -> None:
    schema = TableSchema({"Id": "N"}, projects_all=True)
    assert record_id({"Id": {"N": "1.0"}}, schema) == record_id({"Id": {"N": "1E0"}}, schema) == '{"Id":1}'


@pytest.mark.parametrize(
    "identity", ["", "r1", "[]", "{}", '{"Shard":"a"}', '{"Shard":"a","At":1,"x":2}', '{"Shard":"a","at":1}', "null"]
)
def test_what_is_no_id_of_the_table_is_refused(identity: str) -> None:
    with pytest.raises(ValueError):
        key_of(identity, TableSchema({"Shard": "S", "At": "N"}, projects_all=True))


@pytest.mark.parametrize(
    "identity", ['{"Shard":1,"At":1}', '{"Shard":"a","At":"1"}', '{"Shard":null,"At":1}', '{"Shard":"a","At":[]}']
)
def test_an_id_of_the_wrong_types_is_refused(identity: str) -> None:
    with pytest.raises(ValueError):
        key_of(identity, TableSchema({"Shard": "S", "At": "N"}, projects_all=True))
