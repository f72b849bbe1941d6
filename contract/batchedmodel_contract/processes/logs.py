"""How each process logs: lines for people, or JSON objects with one field set for all.

Each process calls `configure` once. Whatever logs in it, libraries too, goes through its one
handler to standard error.
"""

import json
import logging
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Final

LOG_FORMAT_VARIABLE: Final = "BATCHEDMODEL_LOG_FORMAT"
"""By which processes that a process starts learn its format: they inherit it."""

_TIME: Final = "%H:%M:%S"
_FIELDS: Final = "batchedmodel_fields"
"""Attribute of a record, made by `about`."""
_NO_FIELDS: Final[Mapping[str, str]] = {}


class LogLevel(StrEnum):
    """How much a process says."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """In which form a process logs."""

    TEXT = "text"
    """A line begins with the time of day and the level; a traceback follows it."""
    JSON = "json"
    """A line is an object, exceptions included."""


class Process(StrEnum):
    """Which process a line is of."""

    OPERATOR = "operator"
    HELM_TEST = "helm-test"
    AUTOSCALER = "autoscaler"
    SIDECAR = "sidecar"
    SIDECAR_HELPER = "sidecar-helper"
    MODEL_SERVER = "model-server"
    FETCH = "fetch"


class JsonFormatter(logging.Formatter):
    """Any record as one line that is a JSON object of strings; it never fails."""

    def __init__(self, process: Process, model: str = "") -> None:
        """`model`: in the lines of a process that has one model; empty: none."""
        super().__init__()
        self._process = process
        self._model = model

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end, in ASCII."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, str] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process.value,
            "logger": record.name,
            "message": _message(record),
        }
        if self._model:
            fields["model"] = self._model
        fields |= getattr(record, _FIELDS, _NO_FIELDS)
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = self._traceback(record)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json.dumps(fields)

    def _traceback(self, record: logging.LogRecord) -> str:
        assert record.exc_info, "it is asked for records of exceptions"
        try:
            return self.formatException(record.exc_info)
        except Exception as error:
            return f"the traceback cannot be written: {type(error).__name__}"


def about(
    *,
    namespace: str = "",
    model: str = "",
    pod: str = "",
    pod_uid: str = "",
    reason: str = "",
    trace: str = "",
) -> dict[str, object]:
    """`extra` of a line that names these in its text; empty ones are left out."""
    given = {
        "namespace": namespace,
        "model": model,
        "pod": pod,
        "podUid": pod_uid,
        "reason": reason,
        "trace": trace,
    }
    return {_FIELDS: {name: value for name, value in given.items() if value}}


def inherited_format(environ: Mapping[str, str]) -> LogFormat:
    """The format of the process that started this one and has checked its settings."""
    return LogFormat(environ.get(LOG_FORMAT_VARIABLE) or LogFormat.TEXT)


def configure(level: str, form: LogFormat, process: Process, *, model: str = "") -> None:
    """Let all that this process logs from `level` on go to standard error in this form.

    As JSON that includes Python's warnings, and exceptions that nobody catches.
    """
    handler = logging.StreamHandler(sys.stderr)
    if form is LogFormat.JSON:
        handler.setFormatter(JsonFormatter(process, model))
        logging.captureWarnings(True)
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread
    else:
        # It shares the log of its container.
        prefix = "helper: " if process is Process.SIDECAR_HELPER else ""
        line = f"%(asctime)s %(levelname)s {prefix}%(message)s"
        handler.setFormatter(logging.Formatter(line, _TIME))
    logging.basicConfig(handlers=[handler], level=level.upper())


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:
        # Arguments may be anything; the template is ours or a library's.
        template = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        return f"{template} (cannot be formatted: {type(error).__name__})"


def _uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(__name__).critical("uncaught", exc_info=(kind, error, traceback))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and args.exc_type is not SystemExit:
        _uncaught(args.exc_type, args.exc_value, args.exc_traceback)
