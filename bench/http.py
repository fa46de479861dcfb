"""`python -m bench.http`: how long `POST /jobs` takes under load, beside a FastAPI endpoint that does nothing.

The job is written down in a real PostgreSQL (fsync on) and its id is sent to the stand-in for SQS, as in production.
The bare endpoint checks the same body and answers the same; both run in processes of their own, in turns, under the
same clients. Ratios within one run hold; absolute figures belong to the machine.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import Body, FastAPI, Response
from rich.console import Console
from rich.table import Table

from bench.machine import StandIn, postgres, stand_in
from bench.report import machine
from ledger.ids import new_id
from ledger.settings import env_name
from ops.jobs.requests import AnyRequest

HERE = Path(__file__).parent
BODY = json.dumps({"kind": "reconcile", "params": {"window": "2026-09-17T15:00:00Z"}}).encode()
HEADERS = {"Content-Type": "application/json"}
_WARM_UP = 200


def bare() -> None:
    """Serve the endpoint that does nothing, until killed; its URL is the first line of output."""
    app = FastAPI()

    @app.post("/api/v1/jobs", status_code=202)
    def create(_: Annotated[AnyRequest, Body(discriminator="kind")]) -> Response:
        return Response(json.dumps({"job_id": str(new_id()), "status": "pending"}), 202, media_type="application/json")

    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, server_header=False, lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=_tell, args=(server,), daemon=True).start()
    server.run()


def _tell(server: uvicorn.Server) -> None:
    while not server.started:
        threading.Event().wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)


@contextmanager
def served(command: list[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Run a server, and yield its URL."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ})
    assert process.stdout is not None
    try:
        yield str(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.wait()


def environment(aws: StandIn, url: str) -> dict[str, str]:
    """Return the settings of the server."""
    keys = {
        "ledger.database_url": url,
        "aws.endpoint_url": aws.url,
        "aws.region": "us-east-1",
        "jobs.max_depth": "10000000",
    }
    access = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    return access | {env_name(key): value for key, value in keys.items()}


def load(url: str, clients: int, requests: int) -> tuple[list[float], float]:
    """Let clients ask one request after another; returns what each took, in seconds, and the requests a second."""
    took: list[list[float]] = [[] for _ in range(clients)]
    start = threading.Barrier(clients + 1)
    threads = [
        threading.Thread(target=_client, args=(url, requests // clients, start, took[at])) for at in range(clients)
    ]
    for thread in threads:
        thread.start()
    start.wait()
    began_s = time.perf_counter()
    for thread in threads:
        thread.join()
    all_of_them = [one for each in took for one in each]
    return all_of_them, len(all_of_them) / (time.perf_counter() - began_s)


def _client(url: str, requests: int, start: threading.Barrier, took: list[float]) -> None:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    start.wait()
    for _ in range(requests):
        began_s = time.perf_counter()
        connection.request("POST", "/api/v1/jobs", BODY, HEADERS)
        answer = connection.getresponse()
        answer.read()
        took.append(time.perf_counter() - began_s)
        assert answer.status == 202, answer.status
    connection.close()


def figures(took: list[float], rate: float) -> dict[str, float]:
    """Sum up: milliseconds at the 50th and 99th percentile, and requests a second."""
    cuts = statistics.quantiles(took, n=100)
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000, "rate": rate}


def measure(
    urls: Mapping[str, str], clients: int, requests: int, rounds: int, empty: Callable[[], None]
) -> dict[str, dict[str, float]]:
    """Measure both sides in turns; returns the medians over the rounds.

    Args:
        empty: forgets the jobs of the round before: in production, workers take them away.
    """
    for url in urls.values():
        load(url, clients, _WARM_UP)
    each: dict[str, list[dict[str, float]]] = {side: [] for side in urls}
    for _ in range(rounds):
        empty()
        for side, url in urls.items():
            each[side].append(figures(*load(url, clients, requests)))
    return {
        side: {name: statistics.median(one[name] for one in found) for name in found[0]} for side, found in each.items()
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench.http", description=__doc__)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32], metavar="N", help="at the same time")
    parser.add_argument("--requests", type=int, default=2000, help="a round, of all clients")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "http.json", metavar="PATH")
    options = parser.parse_args()
    if options.bare:
        bare()
        return
    about: Any = machine()
    found = {}
    python = sys.executable
    with postgres() as database, database.fresh() as url, stand_in(0) as aws:
        product = [python, "-m", "ops.main", "serve", "--port", "0", "--json"]
        with (
            served(product, environment(aws, url)) as real,
            served([python, "-m", "bench.http", "--bare"], {}) as nothing,
        ):
            for clients in options.clients:
                found[clients] = measure(
                    {"jobs": real, "bare": nothing},
                    clients,
                    options.requests,
                    options.repeat,
                    lambda: database.tell("UPDATE jobs SET status = 'cancelled', finished_at = ledger_now()", url),
                )
            written = database.ask("SELECT count(*) FROM jobs", url)
            unsent = database.ask("SELECT count(*) FROM jobs WHERE sent_at IS NULL", url)
    _show(found, written, unsent)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": about, "figures": found}, indent=1) + "\n", encoding="utf-8")


def _show(found: Mapping[int, Mapping[str, Mapping[str, float]]], written: int, unsent: int) -> None:
    table = Table(title="POST /jobs beside an endpoint that does nothing", box=None, padding=(0, 2))
    for name in ("clients", "p50 ms", "bare", "ratio", "p99 ms", "bare", "ratio", "requests/s", "bare"):
        table.add_column(name, justify="right")
    for clients, sides in found.items():
        jobs, nothing = sides["jobs"], sides["bare"]
        cells: list[str] = [str(clients)]
        for name in ("p50_ms", "p99_ms"):
            cells += [f"{jobs[name]:.1f}", f"{nothing[name]:.1f}", f"{jobs[name] / nothing[name]:.1f}"]
        table.add_row(*cells, f"{jobs['rate']:.0f}", f"{nothing['rate']:.0f}")
    console = Console(highlight=False, width=max(120, Console().width))
    console.print(table)
    console.print(f"{written:,} jobs written down, {unsent:,} of them not sent at once")


if __name__ == "__main__":
    main()
