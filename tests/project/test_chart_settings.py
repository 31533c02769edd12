"""The schema of the chart's `settings` is generated from the variables that the settings module reads."""

import json
from typing import Any

import pytest
from django.conf import settings

from deploy.release.chart_settings import RESERVED, SCHEMA, updated
from hetsched.project.environment import Environment


def test_schema_is_up_to_date() -> None:
    text = SCHEMA.read_text()
    assert updated(text, settings.ENV.schemas) == text, "run python -m deploy.release.chart_settings"


def test_every_setting_except_those_of_other_values_is_allowed() -> None:
    allowed = json.loads(SCHEMA.read_text())["properties"]["settings"]["properties"]
    assert allowed.keys() == settings.ENV.schemas.keys() - RESERVED
    assert settings.ENV.schemas.keys() > RESERVED


@pytest.mark.parametrize(
    ("read", "arguments", "schema"),
    [
        (
            "flag", {"default": True},
            {"enum": [
                True, False, 1, 0, "0", "1", "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF",
                "on", "On", "ON", "true", "True", "TRUE", "yes", "Yes", "YES", "",
            ]},
        ),
        ("choice", {"options": ("info", "none")}, {"enum": ["info", "Info", "INFO", "none", "None", "NONE", ""]}),
        (
            "number", {"default": 5, "least": 1, "most": 90},
            {"type": ["integer", "string"], "minimum": 1, "maximum": 90, "pattern": "^([1-9][0-9]{0,1})?$"},
        ),
        ("text", {}, {"type": "string"}),
        ("secret", {"least_characters": 16}, {"type": "string", "anyOf": [{"maxLength": 0}, {"minLength": 16}]}),
    ],
)  # fmt: skip
def test_environment_records_the_schema_of_a_variable(read: str, arguments: dict[str, Any], schema: Any) -> None:
    env = Environment({})
    getattr(env, read)("X", **arguments)
    assert env.schemas == {"X": schema}
