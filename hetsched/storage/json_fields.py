"""JSON column that is a contract type in Python.

Dictionaries from the database lose their types, and decoding them twice costs more than the query.
`StructField(PodSpec)` stores the JSON of the type and returns the type itself, validated while it is decoded. The
database sees a plain JSON column, so migrations do not depend on the type.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.db import models


def written(value: Any) -> str | None:
    """Return a value as the column stores it."""
    return None if value is None else msgspec.json.encode(value).decode()


class StructField(models.JSONField):
    """JSON column that holds one msgspec type; None is SQL NULL."""

    def __init__(self, struct: Any = Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.struct = struct
        self._decode = msgspec.json.Decoder(struct).decode

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, str | bytes):
            return msgspec.convert(value, self.struct)
        return self._decode(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return value if hasattr(value, "as_sql") else written(value)

    def to_python(self, value: Any) -> Any:
        return value

    def validate(self, value: Any, model_instance: Any) -> None:
        """Validate the value with the decoder of the type."""
        msgspec.convert(msgspec.to_builtins(value), self.struct)

    def value_to_string(self, obj: Any) -> Any:
        return msgspec.to_builtins(self.value_from_object(obj))
