"""Text column for messages, which stores the template and the parameters of each message.

A message with parameters is stored as JSON, any other text unchanged; rows of earlier versions contain plain text.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from hetsched.contracts.message import Message, from_column, from_parts, to_column


class MessageField(models.TextField):
    """Text column that returns a `Message` if one was written."""

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.TextField", args, kwargs

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return None if value is None else from_column(value)

    def to_python(self, value: Any) -> Any:
        """Return a message; the value may also be the decoded JSON form of a message, as in backups."""
        return from_parts(Message, value) if isinstance(value, dict) else super().to_python(value)

    def get_prep_value(self, value: Any) -> Any:
        return to_column(value) if isinstance(value, str) else super().get_prep_value(value)
