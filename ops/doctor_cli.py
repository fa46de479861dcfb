"""The command that looks at an installation."""

import typer

from ops import views
from ops.context import CONTEXT, say_error


def add_to(app: typer.Typer) -> None:
    """Hang this command below the others."""
    app.command("doctor", epilog="Example: dispatch-ledger doctor")(examine)


def examine() -> None:
    """Check configuration, AWS and ledger; says of each thing that is wrong how to mend it, and changes nothing."""
    from ops import doctor

    lines = doctor.examine(CONTEXT.config)
    if CONTEXT.json:
        CONTEXT.print_json(doctor.document(lines))
    else:
        views.show_checks(CONTEXT.console, lines)
    error = doctor.error_line(lines)
    if error is not None:
        say_error(error)
    raise typer.Exit(doctor.exit_code(lines))
