"""Where an entry's object lies: derived from what the entry promises, so the same content always has the same key."""

from ledger.instants import Window


def window_prefix(prefix: str, pipeline: str, window: Window) -> str:
    """Return what the keys of all objects of one window begin with."""
    hour = window.name[:13].replace("-", "/").replace("T", "/")
    return f"{prefix}{pipeline}/{hour}/"


def object_key(place: str, group_digest: bytes, content_hash: bytes, generation: int) -> str:
    """Return the key of an entry's object below its window's prefix `place`."""
    return f"{place}{group_digest.hex()}/{content_hash.hex()}-{generation}.json"
