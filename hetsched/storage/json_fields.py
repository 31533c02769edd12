"""JSON column whose Python value is a typed object, such as a struct of hetsched.contracts.

A plain `JSONField` returns dictionaries without types, and converting these to objects takes longer than the query.
`StructField(PodSpec)` stores the JSON of the type and returns the type itself, validated while it is decoded. The
database sees a plain JSON column, so migrations do not depend on the type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import msgspec.inspect
from django.db import models

from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.message import Message, as_parts, as_text, from_parts


def written(value: Any, hook: Callable[[Any], Any] = as_parts) -> str | None:
    """Return a value in the form that the column stores; `hook` encodes the messages."""
    return None if value is None else encode(value, hook=hook).decode()


def _keeps_messages(struct: Any) -> bool:
    """Return True if a type has fields for messages; other types store the English text of messages."""
    found: set[Any] = set()
    open_types: list[Any] = [msgspec.inspect.type_info(struct)]
    while open_types:
        kind = open_types.pop()
        if isinstance(kind, msgspec.inspect.CustomType) and kind.cls is Message:
            return True
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls in found:
                continue
            found.add(kind.cls)
            open_types.extend(field.type for field in kind.fields)
        open_types.extend(getattr(kind, name) for name in ("item_type", "value_type") if hasattr(kind, name))
        open_types.extend((*getattr(kind, "types", ()), *getattr(kind, "item_types", ())))
    return False


class StructField(models.JSONField):
    """JSON column that contains one msgspec type; None is stored as SQL NULL."""

    def __init__(self, struct: Any = Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.struct = struct
        self._hook = as_parts if _keeps_messages(struct) else as_text
        self._decode = msgspec.json.Decoder(struct, dec_hook=from_parts).decode
        self._encode = msgspec.json.Encoder(enc_hook=self._hook).encode

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, str | bytes):
            return msgspec.convert(value, self.struct, dec_hook=from_parts)
        return self._decode(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return value if hasattr(value, "as_sql") else self.written(value)

    def written(self, value: Any) -> str | None:
        """Return a value in the form that the column stores."""
        return None if value is None else self._encode(value).decode()

    def to_python(self, value: Any) -> Any:
        return value

    def validate(self, value: Any, model_instance: Any) -> None:
        """Validate the value with the decoder of the type."""
        msgspec.convert(to_plain(value), self.struct, dec_hook=from_parts)

    def value_to_string(self, obj: Any) -> Any:
        return msgspec.to_builtins(self.value_from_object(obj), enc_hook=self._hook)
