"""Logs: always on standard error; readable at a terminal, one JSON object a line elsewhere. Never a member's id."""

import logging
import sys

import structlog

from ledger.errors import InputError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


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
