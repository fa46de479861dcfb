"""DynamoDB items: from typed attributes to plain data, to a record id and back to a key. Pure."""

import base64
from typing import Any

import msgspec

from ledger.canonical import canonical_json, plain_digits, plain_number

Item = dict[str, dict[str, Any]]


class TableSchema(msgspec.Struct, frozen=True):
    """What the table and its index say of themselves.

    Attributes:
        key_types: the table's key attributes, hash key first, with their types (`S`, `N` or `B`).
        projects_all: whether the index carries every attribute.
    """

    key_types: dict[str, str]
    projects_all: bool

    @property
    def text_key(self) -> str | None:
        """The name of the key attribute when the key is one string, else None."""
        (name, kind), *rest = self.key_types.items()
        return name if kind == "S" and not rest else None


def plain(value: dict[str, Any]) -> Any:
    """Return one attribute value as plain data, numbers digit by digit, sets as sorted lists.

    Raises:
        ValueError: when a number is none, or the type is unknown.
    """
    ((kind, content),) = value.items()
    if kind in {"S", "BOOL", "B"}:
        return content
    if kind == "N":
        return plain_number(content)
    if kind == "M":
        return {name: plain(member) for name, member in content.items()}
    if kind == "L":
        return [plain(member) for member in content]
    if kind == "NULL":
        return None
    if kind == "NS":
        return sorted(map(plain_number, content), key=canonical_json)
    if kind in {"SS", "BS"}:
        return sorted(content, key=canonical_json)
    raise ValueError(f"unknown attribute type {kind!r}")


def with_bytes(value: dict[str, Any]) -> dict[str, Any]:
    """Return an attribute value with binary as bytes, as the SDK wants to be given it; here it is base64 text."""
    ((kind, content),) = value.items()
    if kind == "B":
        return {kind: base64.b64decode(content)}
    if kind == "BS":
        return {kind: [base64.b64decode(member) for member in content]}
    if kind == "M":
        return {kind: {name: with_bytes(member) for name, member in content.items()}}
    if kind == "L":
        return {kind: [with_bytes(member) for member in content]}
    return value


def plain_item(item: Item) -> dict[str, Any]:
    """Return a whole item as plain data."""
    whole = {}
    for name, value in item.items():  # text and numbers are most of an item, and this is a hot loop
        if "S" in value:
            whole[name] = value["S"]
        elif "N" in value:
            whole[name] = plain_number(value["N"])
        else:
            whole[name] = plain(value)
    return whole


def record_id(item: Item, schema: TableSchema) -> str:
    """Return the table's key as text: one string key as it is, else the canonical JSON of the key attributes."""
    if schema.text_key is not None:
        text: str = item[schema.text_key]["S"]
        return text
    return canonical_json({name: plain(item[name]) for name in schema.key_types}).decode("utf-8", "surrogatepass")


def key_of(identity: str, schema: TableSchema) -> Item:
    """Return the DynamoDB key of the record whose id is `identity`: the way back from `record_id`.

    Raises:
        ValueError: when the text is no id of this table.
    """
    if schema.text_key is not None:
        return {schema.text_key: {"S": identity}}
    try:
        raw = msgspec.json.decode(identity, type=dict[str, msgspec.Raw])
        if set(raw) != set(schema.key_types):
            raise ValueError(f"not a record id of this table; it has the key attributes {', '.join(schema.key_types)}")
        return {name: {kind: _key_text(raw[name], kind)} for name, kind in schema.key_types.items()}
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"not a record id of this table: {error}") from None


def _key_text(raw: msgspec.Raw, kind: str) -> str:
    return plain_digits(bytes(raw).decode()) if kind == "N" else msgspec.json.decode(raw, type=str)
