"""Query for the orphaned pods of a cluster. The query has its own index: it runs often and rarely finds a row."""

from __future__ import annotations

from django.db.models import QuerySet

from hetsched.storage.literals import Literal

from ..lifecycle import State
from ..models import Pod


def orphaned_pods(cluster_id: int) -> QuerySet[Pod]:
    """Return the orphaned pods of a cluster, whose resources stay reserved."""
    rows = Pod.objects.filter(cluster_id=cluster_id, origin=Literal(Pod.REMNANT), state=State.RUNNING.value)
    return rows.order_by()
