"""The commands that stay: the HTTP API, and the workers that do what is asked for there."""

from collections import Counter
from typing import Annotated

import typer

from ledger.errors import CancelledError
from ops.context import CONTEXT
from ops.signals import cancellable


def add_to(app: typer.Typer) -> None:
    """Hang these commands beside the others."""
    app.command(epilog="Example: dispatch-ledger serve --port 8000")(serve)
    app.command(epilog="Example: dispatch-ledger worker --concurrency 2")(worker)


def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen on; another than this machine's own needs api.tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 for any that is free.")] = 8000,
) -> None:
    """Answer HTTP requests, until ended by Ctrl-C or SIGTERM. The API is described at /api/v1/openapi.json."""
    from ops.api import server

    settings = CONTEXT.settings()
    with cancellable() as cancellation:
        server.run(settings, cancellation, host, port, _say_ready)
    if CONTEXT.json and not CONTEXT.told:  # it was asked to end before it was ready
        raise CancelledError(cancellation.signal_number)
    raise typer.Exit(128 + cancellation.signal_number)


def _say_ready(url: str) -> None:
    if CONTEXT.json:
        CONTEXT.print_json({"url": url})
    else:
        CONTEXT.console.print(f"Serving {url}; the API is described at {url}/api/v1/openapi.json", soft_wrap=True)


def worker(
    queue: Annotated[
        list[str] | None,
        typer.Option(help="jobs.queue or jobs.slow_queue, by name; may be given twice; both by default."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Jobs at the same time, from each queue.")] = 1,
) -> None:
    """Do the long-running jobs that were asked for over HTTP, until ended by Ctrl-C or SIGTERM."""
    from ops.jobs import worker as workers

    settings, ended = CONTEXT.settings(), Counter[str]()
    with cancellable(document=lambda: workers.worker_document(ended)) as cancellation:
        lanes = workers.lanes_of(settings, queue or [])
        workers.run(settings, cancellation, CONTEXT.console, lanes, concurrency, ended)
    if CONTEXT.json:
        CONTEXT.print_json(workers.worker_document(ended))
    raise typer.Exit(128 + cancellation.signal_number)
