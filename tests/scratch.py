"""Where servers of the tests keep their files: in memory where there is room, for a disk took most of their time."""

import os
import shutil
import tempfile
from pathlib import Path

_IN_MEMORY, _ON_DISK = Path("/dev/shm"), Path("/tmp")
_ROOM_BYTES = 2 * 1024**3


def _has_room(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= _ROOM_BYTES


SCRATCH = _IN_MEMORY if _has_room(_IN_MEMORY) else _ON_DISK


def short_folder(prefix: str = "dl-") -> Path:
    """Make a folder that the server's user may enter when root runs the tests, its path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=SCRATCH)).resolve()
    folder.chmod(0o755)
    return folder
