"""Logs: always on standard error; readable at a terminal, one JSON object a line elsewhere. Never a member's id."""

import logging
import sys

import structlog

from ledger.errors import InputError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Foreign(logging.Handler):
    """Writes what libraries log through the standard library as a line like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it again, with the library's name."""
        structlog.get_logger().log(
            record.levelno, record.getMessage(), library=record.name, exc_info=record.exc_info or None
        )


def configure(level: str) -> None:
    """Set up logging for the process.

    Raises:
        InputError: when the level is none of debug, info, warning and error.
    """
    if level not in LEVELS:
        raise InputError(f"--log-level {level[:40]!r} is not allowed; use {', '.join(LEVELS)}")
    terminal = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.lastResort = _Foreign(logging.WARNING)  # which writes what nobody else takes
