"""Structured logs with secrets redacted.

Every record, including those of libraries, passes through one chain of processors. The chain redacts the values of
fields that are named like a secret. In any text it redacts bearer tokens, signed tokens, passwords of URLs and the
deployment's own secrets. JSON escapes line breaks, so one record stays one line; the console form is for terminals.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

import structlog

HIDDEN = "[hidden]"
_SECRET_NAME = re.compile(r"authorization|cookie|token|passw|secret|csrf|api[-_]?key", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"hs_[0-9a-f]{8,}|eyJ[\w-]{4,}\.[\w-]{4,}\.[\w-]*|(?<=bearer[ .])[\w.~+/=-]{8,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    re.IGNORECASE,
)


_own: set[str] = set()


def hide(*secrets: str) -> None:
    """Register secrets of this deployment that are redacted from every record."""
    _own.update(secret for secret in secrets if len(secret) >= 8)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        for secret in _own:
            value = value.replace(secret, HIDDEN)
        return _SECRET_TEXT.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {key: HIDDEN if _SECRET_NAME.search(str(key)) else _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redact secrets in one log record, by the name of the field and by the shape of the text."""
    for key, value in event.items():
        if key.startswith("_"):
            continue  # `_record` and `_from_structlog`, which structlog adds for its formatter
        event[key] = HIDDEN if _SECRET_NAME.search(key) else _clean(value)
    return event


SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]
# One list for every configuration: loggers keep the list of their first use, and `capture_logs` changes the list.
_OF_STRUCTLOG: list[Any] = [
    structlog.stdlib.filter_by_level,
    *SHARED,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
]


def logging_config(form: str, level: str) -> dict[str, Any]:
    """Return Django's LOGGING for `form` json or console; also configure structlog."""
    structlog.configure(
        processors=_OF_STRUCTLOG,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    # Tracebacks become text before the redaction, so that a secret inside an exception's message is redacted too.
    last: list[Any] = [structlog.processors.format_exc_info, redact]
    if form == "json":
        last.append(structlog.processors.JSONRenderer())
    else:
        last.append(structlog.dev.ConsoleRenderer(colors=False))
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
                "foreign_pre_chain": SHARED,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Remove the handlers of Django and uvicorn; ours is on the root logger.
            "django": {"handlers": [], "propagate": True},
            "django.server": {"handlers": [], "propagate": True, "level": "WARNING"},
            "uvicorn": {"handlers": [], "propagate": True},
            "uvicorn.access": {"handlers": [], "propagate": False},  # the request log has more detail
            # Task starts and connections are debug details.
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            "celery.beat": {"level": "WARNING"},
            # At debug level, these log the values of a sign-in.
            "authlib": {"level": "INFO"},
        },
    }
