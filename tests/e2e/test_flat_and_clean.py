"""What a run takes while it lasts and leaves when it is over: the kernel's own peak of memory, and no files."""

import gzip
import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests.aws_servers import World
from tests.e2e.test_cases import SEVEN, synthetic
from tests.product import Product
from tests.rig import WINDOW
from tests.wire import query_server

# Not ru_maxrss: it starts from the peak of the process that started this one, and hides whatever stays below that.
PEAK = (
    "import re, sys\n"
    "from pathlib import Path\n"
    "from ops.cli import main\n"
    "code = main(sys.argv[1:])\n"
    "sys.stderr.write(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
    "sys.exit(code)\n"
)
PLACES = (Path(tempfile.gettempdir()), Path("/var/lib/dispatch-ledger"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("flow", ["staged", "paged"])
def test_case_21_the_peak_does_not_grow_with_the_window(product: Product, world: World, flow: str) -> None:
    def peak_kib(total: int) -> int:
        with query_server(world.endpoint, synthetic(total, members=3)) as wire:
            done = product.dispatch(
                WINDOW,
                endpoint=wire.url,
                flow=flow,
                command=(sys.executable, "-c", PEAK),
                pipeline=f"of-{total}",
                dispatch__page_size="1000",
                dispatch__verify_due="false",
            ).ended(0)
        done.books(evaluated=total, claimed=total, outcome="completed")
        return int(done.err)

    small, large = peak_kib(4_000), peak_kib(16_000)
    assert large - small < 16 * 1024, (small, large)


def ours() -> set[Path]:
    """List what demos keep in places that all programs share."""
    return {path for place in PLACES if place.is_dir() for path in place.glob("dispatch-ledger-*")}


@pytest.mark.parametrize("good", [True, False], ids=["done", "refused"])
def test_a_demo_leaves_nothing_behind(tmp_path: Path, *, good: bool) -> None:
    """Its temporary folder is put where only this test looks; the working directory stays as it was."""
    temporary, here = tmp_path / "t", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    tmp_path.chmod(0o755)
    (here / "own.gz").write_bytes(gzip.compress(SEVEN.read_bytes() + (b"" if good else b"{\n")))
    before = ours()
    done = Product(None, None, here).run("demo", "own.gz", "--json", environ={"TMPDIR": str(temporary)})
    done.ended(0 if good else 2)
    assert sorted(path.name for path in temporary.iterdir()) == []
    assert os.listdir(here) == ["own.gz"]  # noqa: PTH208 - the names are what is compared
    assert {path for path in ours() - before if path.parent == temporary} == set()
