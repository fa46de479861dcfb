"""Where an entry's object lies: derived from what the entry promises, so the same content always has the same key."""

import re

from ledger.instants import Window

_TAIL = re.compile(r"/([0-9a-f]{32})/([0-9a-f]{64})-(0|[1-9][0-9]{0,4})\.json")


def window_prefix(prefix: str, pipeline: str, window: Window) -> str:
    """Return what the keys of all objects of one window begin with."""
    hour = window.name[:13].replace("-", "/").replace("T", "/")
    return f"{prefix}{pipeline}/{hour}/"


def object_key(place: str, group_digest: bytes, content_hash: bytes, generation: int) -> str:
    """Return the key of an entry's object below its window's prefix `place`."""
    return f"{place}{group_digest.hex()}/{content_hash.hex()}-{generation}.json"


def parse_object_key(key: str) -> tuple[bytes, bytes, int] | None:
    """Read group digest, content hash and generation back from a key; None when no entry can have such a key."""
    found = _TAIL.search(key)
    if found is None or found.end() != len(key):
        return None
    return bytes.fromhex(found[1]), bytes.fromhex(found[2]), int(found[3])
