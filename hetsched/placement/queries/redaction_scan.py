"""The last look at an answer to a token that is limited to namespaces: pods of other namespaces are not named in it.

Problem: a sentence of the ledger, a refusal or an eviction tells of what stood in a pod's way, and that may be another
team's. Each view shows rows of the asker's namespaces alone; texts are made where nobody knows who will read them.
Rule: `namespace/name` is replaced wherever the first part is a namespace that has or had pods, or that the answer
itself names as a pod's, and is none of the asker's. Numbers, nodes and reasons stay.
Limits: a namespace that stands alone in a text is not found; texts name pods by both parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from hetsched.placement.models import Decision, ForgottenDecision, Pod

HIDDEN = "(a pod of another namespace)"
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME = rf"({_LABEL})/[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?"
# In JSON a name may stand right behind an escaped character, whose last letter is none of the name's.
_KEY = re.compile(rf"(\\(?:u[0-9a-fA-F]{{4}}|[^u]))(?:{_NAME})?|(?<![\w./-]){_NAME}", re.ASCII)
# Fields whose values are pods, whoever knows them.
_POD = re.compile(rf'"(?:pod|blockedBy|pdb)":"({_LABEL})/')


def veil(body: bytes, own: Collection[str]) -> bytes:
    """Return an answer in which no pod of another namespace than these is named."""
    text = body.decode(errors="surrogateescape")
    named = {found[2] or found[3] for found in _KEY.finditer(text)} - {None, *own}
    if not named:
        return body
    foreign = set(_POD.findall(text)) & named
    for model in (Pod, Decision, ForgottenDecision):
        rest = named - foreign
        foreign |= set(
            model.objects.filter(namespace__in=rest).order_by().values_list("namespace", flat=True).distinct()
        )
    if not foreign:
        return body

    def hidden(found: re.Match[str]) -> str:
        return (found[1] or "") + HIDDEN if (found[2] or found[3]) in foreign else found[0]

    return _KEY.sub(hidden, text).encode(errors="surrogateescape")
