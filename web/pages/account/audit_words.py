"""Translate the English texts that the audit log stores.

Actions such as `node.cordon`, roles of users and names are codes and stay untranslated, because filters use them.
Object kinds, names of details and sentences of the product are translated. The catalogue has them under the contexts
`kind`, `role` and `detail`; a text without an entry is shown unchanged.
"""

from __future__ import annotations

from typing import Any

from django.utils.translation import pgettext

from hetsched.contracts.documents import encode
from hetsched.journal.models import AuditEntry
from web.translation import translate

# Roles of programs: the actor's name is a text of the product, not a user name.
_PROGRAMS = ("", "system", "plan")
_CHANGES = (("before", "after"), ("before", "value"), ("known", "told"))


def kind(row: AuditEntry) -> str:
    """Return the translated kind of the object of an entry."""
    return _word("kind", row.object_kind)


def actor(row: AuditEntry) -> str:
    """Return the name of the actor, translated for programs."""
    return translate(row.actor) if row.role in _PROGRAMS else row.actor


def role(row: AuditEntry) -> str:
    """Return the translated role of the actor."""
    return _word("role", row.role)


def changed(details: dict[str, Any]) -> str:
    """Return the details of an entry in one line, as before → after if both are recorded."""
    rest = dict(details)
    said = []
    for before, after in _CHANGES:
        if before in rest and after in rest:
            said.append(f"{_plain(rest.pop(before))} → {_plain(rest.pop(after))}")
    named = (f"{_word('detail', name)} {_plain(value)}" for name, value in rest.items() if value not in (None, "", []))
    return pgettext("message", "; ").join([*said, *named])


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return translate(value)
    text = encode(value).decode()
    return _word("detail", text) if isinstance(value, bool) else text


def _word(context: str, word: str) -> str:
    return pgettext(context, word) if word else word
