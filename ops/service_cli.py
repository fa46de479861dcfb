"""The commands that stay: the HTTP API, and the workers that do what is asked for there."""

from typing import Annotated

import typer

from ops.context import CONTEXT
from ops.signals import cancellable


def add_to(app: typer.Typer) -> None:
    """Hang these commands beside the others."""
    app.command(epilog="Example: dispatch-ledger worker --concurrency 2")(worker)


def worker(
    queue: Annotated[
        list[str] | None,
        typer.Option(help="jobs.queue or jobs.slow_queue, by name; may be given twice; both by default."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Jobs at the same time, from each queue.")] = 1,
) -> None:
    """Do the long-running jobs that were asked for over HTTP, until ended by Ctrl-C or SIGTERM."""
    from ops.jobs import worker as workers  # noqa: PLC0415 - what only this command needs

    settings = CONTEXT.settings()
    with cancellable() as cancellation:
        lanes = workers.lanes_of(settings, queue or [])
        document = workers.run(settings, cancellation, CONTEXT.console, lanes, concurrency)
    if CONTEXT.json:
        CONTEXT.print_json(document)
    raise typer.Exit(128 + cancellation.signal_number)
