"""Secrets are redacted from log lines: by field name, by shape, and in exceptions of any library."""

import io
import json
import logging
import logging.config

import pytest
import structlog
from structlog.testing import capture_logs

from hetsched.project.logs import HIDDEN, logging_config, redact

TOKEN = "hs_" + "0a" * 32


@pytest.mark.parametrize("name", ["Authorization", "cookie", "token", "password", "csrftoken", "SECRET_KEY", "api_key"])
def test_field_is_redacted_by_name(name: str) -> None:
    assert redact(None, "info", {"event": "x", name: "canary"})[name] == HIDDEN


def test_nested_field_is_redacted_by_name() -> None:
    assert "canary" not in str(redact(None, "info", {"event": "x", "headers": {"Authorization": ["canary"]}}))


@pytest.mark.parametrize(
    "text",
    [f"got {TOKEN}", "Authorization: Bearer canary.canary", "postgres://me:canary@host/db", "bearer.canary.canary"],
)
def test_secret_in_text_is_redacted_by_shape(text: str) -> None:
    shown = str(redact(None, "info", {"event": text}))
    assert HIDDEN in shown
    assert "canary" not in shown
    assert TOKEN not in shown


@pytest.fixture
def lines():  # type: ignore[no-untyped-def]
    """Log through the real configuration into memory; return a function that reads the written records."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    config = logging_config("json", "INFO")
    config["loggers"] = {}
    logging.config.dictConfig(config)
    stream = io.StringIO()
    handler = root.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_library_traceback_is_redacted(lines: io.StringIO) -> None:
    try:
        raise ValueError(f"refused {TOKEN}")
    except ValueError:
        logging.getLogger("some.library").exception("it failed with %s", TOKEN)
    assert TOKEN not in lines.getvalue()
    assert "ValueError: refused" in json.loads(lines.getvalue())["exception"]


def test_line_breaks_do_not_make_new_records(lines: io.StringIO) -> None:
    structlog.get_logger("x").info("request", path="/a\n{}")
    assert lines.getvalue().count("\n") == 1


def test_second_configuration_reaches_loggers_in_use(lines: io.StringIO) -> None:
    log = structlog.get_logger("in use")
    log.info("first use")
    logging_config("json", "INFO")
    with capture_logs() as logs:
        log.info("second use")
    assert [entry["event"] for entry in logs] == ["second use"]
