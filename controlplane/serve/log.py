"""Events in, one JSON object a line out: on stderr, for people with `jq` and for log pipelines.

Every line has `event`, `level` and `at` (UTC). Secrets are taken out of every field before it is written,
as a last line of defence. What libraries log joins the same stream. A stream that cannot be written to (a
closed pipe, a full disk) costs the lines and nothing else: limits are not judged worse for want of a log.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog
from aiohttp.http_exceptions import HttpProcessingError

from controlplane.serve import documents
from controlplane.serve.changes import Changes
from controlplane.serve.redact import NONE, redact_all
from controlplane.serve.view import ProblemLine

Logger = structlog.typing.FilteringBoundLogger
EventDict = MutableMapping[str, Any]


def _no_digests() -> AbstractSet[str]:
    return NONE


def make_logger(
    stream: TextIO,
    *,
    clock: Callable[[], float],
    level: str = "info",
    digests: Callable[[], AbstractSet[str]] = _no_digests,
) -> Logger:
    """A logger that writes to `stream`. `clock` gives Unix seconds, `digests` those of all API keys."""

    def dated(_logger: object, _method: str, event: EventDict) -> EventDict:
        at = datetime.fromtimestamp(clock(), UTC).isoformat(timespec="milliseconds")
        return {"at": at.replace("+00:00", "Z")} | dict(event)

    def redacted(_logger: object, _method: str, event: EventDict) -> EventDict:
        safe: EventDict = redact_all(dict(event), digests())
        return safe

    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(_Patient(stream)),
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            dated,
            redacted,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return logger


class _Patient(io.StringIO):
    """Writes to a stream that may be gone or full: then a line is lost, and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: the stream was closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _json(event: EventDict, **_options: Any) -> str:
    try:
        return json.dumps(event, default=str, ensure_ascii=False, allow_nan=False)
    except ValueError:  # JSON has no nan and no infinities
        finite = json.loads(json.dumps(event, default=str), parse_constant=lambda _name: None)
        return json.dumps(finite, ensure_ascii=False)


def log_changes(logger: Logger, changes: Changes) -> None:
    """One `change` line for each limit that changed: old, new, reason and what it was judged from."""
    for line in changes.lines:
        logger.info("change", **{name: item for name, item in documents.change(line).items() if name != "at"})
    if changes.omitted:
        logger.info("changes_omitted", keys=changes.omitted, reason="a tick logs its largest changes only")


def log_problems(logger: Logger, problems: Sequence[ProblemLine], *, in_force: bool) -> None:
    """One line for each problem of the operator's files, and whether they are in force all the same."""
    for problem in problems:
        write = logger.error if str(problem.severity) == "error" else logger.warning
        write(
            "config_problem",
            where=f"{problem.file}:{problem.line}",
            path=problem.path,
            message=problem.message,
            expected=problem.expected,
            in_force=in_force,
        )


def log_nack(logger: Logger, *, node: str, type_name: str, origins: Sequence[str], reason: str) -> None:
    """A gateway rejected a resource; `origins` are the places in the operator's files behind it."""
    logger.warning("nack", node=node, type=type_name, origins=list(origins), reason=reason)


class Bridge(logging.Handler):
    """Passes what libraries log through `logging` on to our logger, redacted like everything else."""

    def __init__(self, logger: Logger, *, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a record that cannot be formatted is no reason to fail.

        What a client of the admin API sent wrong was answered with 400, and is no error of ours: anybody
        could fill the log with it.
        """
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            return
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = str(record.msg)
        self._logger.log(
            record.levelno, "library", source=record.name, message=message, exc_info=record.exc_info or None
        )
