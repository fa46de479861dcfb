"""Sessions and clients: credentials from the AWS default chain, endpoints and time-outs from the settings.

Clients are botocore's own, which are the same as boto3's: what boto3 lays over them takes long to import.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import botocore.session
import msgspec
from botocore.config import Config
from botocore.parsers import ResponseParserError, ResponseParserFactory

from dispatch.aws.errors import translated
from ledger.errors import InputError

_CONNECT_S = 5
_READ_S = 20
_POOL_MAX = 64
_EMBEDDED_REGION = "us-east-1"
# For what credentials are fetched with, such as AssumeRole; every client of ours says its own.
_BEHIND_CREDENTIALS = Config(
    connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries={"mode": "standard", "total_max_attempts": 2}
)


class NoRegionError(InputError):
    """No region is known."""


class _Page(msgspec.Struct):
    """The part of a Query answer that is needed, and nothing else."""

    Items: list[dict[str, dict[str, Any]]] = []
    LastEvaluatedKey: dict[str, dict[str, Any]] | None = None
    ScannedCount: int = 0


class _Batch(msgspec.Struct):
    """The part of a BatchGetItem answer that is needed."""

    Responses: dict[str, list[dict[str, dict[str, Any]]]] = {}
    UnprocessedKeys: dict[str, dict[str, Any]] = {}


_FAST: dict[str, msgspec.json.Decoder[Any]] = {
    "QueryOutput": msgspec.json.Decoder(_Page),
    "BatchGetItemOutput": msgspec.json.Decoder(_Batch),
}


_LISTED = {name: re.compile(f"<{name}>([^<]*)</{name}>") for name in ("Key", "LastModified", "ETag", "Size")}
_ABOUT_PAGE = re.compile("<(IsTruncated|NextContinuationToken|EncodingType)>([^<]*)</")


def decode_listing(body: bytes) -> dict[str, Any]:
    """Read a page of a bucket's objects: what is needed of it. Keys stay as they are encoded; botocore decodes them.

    Each object has each of the four elements once, so they are picked from the text, which is many times faster than
    making a tree of them; whatever is not as plain as AWS writes it, the tree has to tell. botocore has made sure
    before that it is XML.
    """
    text = body.decode("ascii", "replace").replace("&quot;", '"').replace("&#34;", '"')
    found = {name: element.findall(text) for name, element in _LISTED.items()}
    objects = text.count("<Contents>")
    plain = body.isascii() and "&" not in text and "<!" not in text
    if not plain or not objects or any(len(values) != objects for values in found.values()):
        return decode_listing_tree(body)
    page: dict[str, Any] = dict(_ABOUT_PAGE.findall(text))
    page["Contents"] = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    page["IsTruncated"] = page.get("IsTruncated") == "true"
    return page


def decode_listing_tree(body: bytes) -> dict[str, Any]:
    """Read the same from the document's tree, whatever it looks like."""
    page: dict[str, Any] = {"Contents": []}
    for element in ET.fromstring(body):  # noqa: S314 - what botocore parses the same answer with
        name = element.tag.rpartition("}")[2]
        if name == "Contents":
            every = {child.tag.rpartition("}")[2]: child.text for child in element}
            page["Contents"].append({name: every[name] for name in _LISTED})
        elif name in {"IsTruncated", "NextContinuationToken", "EncodingType"}:
            page[name] = element.text
    page["IsTruncated"] = page.get("IsTruncated") == "true"
    return page


class _FastParser:
    """Decodes the answers of the hot paths straight from their bytes; leaves all others to botocore.

    Numbers and binary stay the text they were on the wire, so that no digit is lost.
    """

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def parse(self, response: dict[str, Any], shape: Any) -> Any:
        """Take botocore's raw response, as its own parsers do."""
        name = getattr(shape, "name", "")
        decode = decode_listing if name == "ListObjectsV2Output" else _decode_json(name)
        if decode is None or response["status_code"] != 200:
            return self._usual.parse(response, shape)
        try:
            parsed = decode(response["body"])
        except ET.ParseError as reason:
            raise ResponseParserError(f"the listing is not XML: {reason}") from None
        metadata = {"HTTPStatusCode": 200, "HTTPHeaders": dict(response["headers"]), "RetryAttempts": 0}
        return parsed | {"ResponseMetadata": metadata}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


def _decode_json(name: str) -> Callable[[bytes], dict[str, Any]] | None:
    decoder = _FAST.get(name)
    return None if decoder is None else partial(_decode_fast, decoder)


def _decode_fast(decoder: msgspec.json.Decoder[Any], body: bytes) -> dict[str, Any]:
    try:
        decoded: dict[str, Any] = msgspec.structs.asdict(decoder.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(body)
    return decoded


def _decode_leniently(body: bytes) -> dict[str, Any]:
    """Decode an answer that msgspec refuses, such as one with an escaped lone surrogate."""
    import json  # noqa: PLC0415 - needed only here, and hardly ever

    decoded: dict[str, Any] = {
        "Items": [],
        "LastEvaluatedKey": None,
        "ScannedCount": 0,
        "Responses": {},
        "UnprocessedKeys": {},
    }
    decoded |= json.loads(body)
    return decoded


class _FastParserFactory(ResponseParserFactory):
    def create_parser(self, protocol_name: str) -> Any:
        """Wrap the parser that botocore would use."""
        return _FastParser(super().create_parser(protocol_name))


class Session:
    """What every client is made from.

    Args:
        endpoint_url: None for AWS itself.
        region: None for the default chain.
        embedded: for the emulator that the product runs: made-up credentials, and a region if none is set.

    Attributes:
        region: where the services are asked.
        credentials_from: which part of the default chain has them, in botocore's words.

    Raises:
        InputError: when no region is known (`NoRegionError`), or no credentials are found.
    """

    def __init__(self, endpoint_url: str | None, region: str | None, *, embedded: bool = False) -> None:
        self.endpoint_url = endpoint_url
        with translated("AWS"):
            core = botocore.session.get_session()
            core.register_component("response_parser_factory", _FastParserFactory())
            core.set_default_client_config(_BEHIND_CREDENTIALS)
            if embedded:
                core.set_credentials("embedded", "embedded")
                region = region or core.get_config_variable("region") or _EMBEDDED_REGION
            if region:
                core.set_config_variable("region", region)  # also for those who are asked for credentials
            credentials = core.get_credentials()
            self.region: str = core.get_config_variable("region") or ""
        self.credentials_from: str = getattr(credentials, "method", "") or "unknown"
        if not self.region:
            raise NoRegionError("AWS: no region is known; set aws.region or AWS_REGION")
        if credentials is None:
            raise InputError(
                "AWS: no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, "
                "or give the machine a role",
            )
        self._core = core
        self.credentials = credentials

    def client(self, service: str, *, tries: int, read: timedelta = timedelta(seconds=_READ_S)) -> Any:
        """Make a client.

        Args:
            service: `dynamodb`, `s3`, `sqs` or `sts`.
            tries: how often one call is tried in all; 1 switches the SDK's own retries off.
            read: how long one try waits for its answer.
        """
        read_s = max(0.05, read.total_seconds())
        config = Config(
            connect_timeout=min(_CONNECT_S, read_s),
            read_timeout=read_s,
            retries={"mode": "standard", "total_max_attempts": tries},
            max_pool_connections=_POOL_MAX,
            s3={"addressing_style": "path"} if self.endpoint_url else None,
        )
        with translated(service):
            create: Any = self._core.create_client  # the service is a variable here, which the stubs do not foresee
            return create(service, region_name=self.region, endpoint_url=self.endpoint_url, config=config)
