"""What the audit trail holds in English words of the product, said in the language of the reader.

Rule: actions such as `node.cordon`, roles of people and names are codes and stay as they are, as filters ask for them.
The kind of an object, the names of details and sentences of the product are said; in English nothing changes. The words
stand in the catalogue under the contexts `kind`, `role` and `detail`; what it does not have is shown as it is kept.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.utils.translation import pgettext

from hetsched.journal.models import AuditEntry

from .told import told

# Roles of what acts by itself: its name is a sentence of the product, and no person's.
_PROGRAMS = ("", "system", "plan")
_CHANGES = (("before", "after"), ("before", "value"), ("known", "told"))


def kind(row: AuditEntry) -> str:
    """Return what kind of object an entry is about."""
    return _word("kind", row.object_kind)


def actor(row: AuditEntry) -> str:
    """Return who acted; programs by what they are."""
    return told(row.actor) if row.role in _PROGRAMS else row.actor


def role(row: AuditEntry) -> str:
    """Return the role under which it was done."""
    return _word("role", row.role)


def changed(details: dict[str, Any]) -> str:
    """Return in one line what an entry says beside its reason: before → after where that is recorded."""
    rest = dict(details)
    said = []
    for before, after in _CHANGES:
        if before in rest and after in rest:
            said.append(f"{_plain(rest.pop(before))} → {_plain(rest.pop(after))}")
    named = (f"{_word('detail', name)} {_plain(value)}" for name, value in rest.items() if value not in (None, "", []))
    return pgettext("told", "; ").join([*said, *named])


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return told(value)
    text = msgspec.json.encode(value).decode()
    return _word("detail", text) if isinstance(value, bool) else text


def _word(context: str, word: str) -> str:
    return pgettext(context, word) if word else word
