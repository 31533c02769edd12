"""Scan of a response to a namespace-limited reader for names of pods out of its scope, to detect missing redaction.

Views redact fields (`redaction`). This scan finds fields that a view did not redact: tests fail on them, and `/metrics`
counts them. It never changes a response. Names contained in the request are excluded before any lookup. Texts that the
caller sent in an earlier request or in escaped form are counted as a leak, so a caller could use the counter, or the
duration of the scan, to test guessed names. Therefore limited tokens cannot read the counter, and the request times
that they can read do not include the scan.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from hetsched.inventory.models import Cluster
from hetsched.placement.lifecycle import LIVE
from hetsched.placement.models import Pod

MOST_NAMES = 500
MOST_BYTES = 1 << 20
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME = rf"({_LABEL})/([a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?)"
# In JSON a name may directly follow an escape sequence, which ends with a letter that is not part of the name.
_KEY = re.compile(rf"\\(?:u[0-9a-fA-F]{{4}}|[^u])(?:{_NAME})?|(?<![\w./-]){_NAME}", re.ASCII)


def out_of_scope_names(body: bytes, own: Collection[str], sent: bytes) -> set[str]:
    """Return the live pods outside these namespaces that a response names although its request `sent` does not.

    At most the first 500 names of a response are looked up. The response is skipped if it or its request is larger than
    1 MiB.
    """
    if max(len(body), len(sent)) > MOST_BYTES:
        return set()
    named: dict[tuple[str, str], None] = {}
    for found in _KEY.finditer(body.decode(errors="replace")):
        namespace, name = found[1] or found[3], found[2] or found[4]
        if namespace and namespace not in own:
            named[namespace, name] = None
    asked = {one for one in list(named)[:MOST_NAMES] if "/".join(one).encode() not in sent}
    if not asked:
        return set()
    clusters = list(Cluster.objects.values_list("pk", flat=True))
    rows = Pod.objects.filter(
        cluster__in=clusters,
        namespace__in={namespace for namespace, _ in asked},
        name__in={name for _, name in asked},
        state__in=sorted(state.value for state in LIVE),
    )
    found_rows = set(rows.order_by().values_list("namespace", "name"))
    return {"/".join(one) for one in asked & found_rows}
