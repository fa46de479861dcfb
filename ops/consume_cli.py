"""`consume`: a safe consumer for the dispatched jobs, with a handler of the user's."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.run import Cancellation
from ops import wiring
from ops.context import CONTEXT
from ops.signals import cancellable

if TYPE_CHECKING:
    from dispatch.consumer import Summary


def add_to(app: typer.Typer) -> None:
    """Hang the command among the others."""
    app.command(epilog="Example: dispatch-ledger consume --queue reward-point --handler rewards:grant")(consume)


def consume(
    queue: Annotated[str, typer.Option(help="The queue's name or URL.")],
    handler: Annotated[
        str,
        typer.Option(
            help="module:function; the module is on PYTHONPATH or in this folder. It gets the job's document."
        ),
    ],
    concurrency: Annotated[int, typer.Option(min=1, help="How many jobs at once, each in a process of its own.")] = 1,
    max_messages: Annotated[
        int | None, typer.Option("--max", min=1, help="End after so many messages; one that comes again counts again.")
    ] = None,
) -> None:
    """Work the jobs of a queue, each once: a receipt in the ledger says who has a job, and what came of it."""
    from dispatch.consumer import Consumer, Summary
    from dispatch.handlers import check_name

    check_name(handler)
    settings, summary = CONTEXT.settings(), Summary()
    with (
        cancellable(document=lambda: _document(queue, handler, summary)) as cancellation,
        wiring.aws_endpoint(settings) as endpoint,
        wiring.ledger(settings) as store,
    ):
        consumer = Consumer(
            settings,
            queue,
            handler,
            concurrency=concurrency,
            ledger_url=store.url,
            endpoint_url=endpoint,
            tracebacks=CONTEXT.debug,
        )

        def say_begun() -> None:
            if not CONTEXT.json:
                CONTEXT.console.print(f"Working the jobs of {queue} with {handler}; end with Ctrl-C.", soft_wrap=True)

        consumer.run(stop=cancellation.asked, max_messages=max_messages, summary=summary, on_begin=say_begun)
    _report(queue, handler, summary)
    raise typer.Exit(_exit_code(cancellation, max_messages, summary))


def _exit_code(cancellation: Cancellation, max_messages: int | None, summary: "Summary") -> int:
    """A signal that came when all was done changes nothing."""
    done = max_messages is not None and summary.handled >= max_messages and not summary.counts["handed_back"]
    return 0 if done else 128 + cancellation.signal_number


def _document(queue: str, handler: str, summary: "Summary") -> dict[str, Any]:
    return {"queue": queue, "handler": handler, "handled": summary.handled} | dict(summary.counts)


def _report(queue: str, handler: str, summary: "Summary") -> None:
    if CONTEXT.json:
        CONTEXT.print_json(_document(queue, handler, summary))
    else:
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary.counts.items() if count)
        CONTEXT.console.print(f"{summary.handled} messages handled" + (f": {counts}" if counts else ""))
