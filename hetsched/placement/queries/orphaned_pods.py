"""Query for the orphaned pods of a cluster, served by its own index: it runs often and rarely finds a row."""

from __future__ import annotations

from hetsched.storage.prepared_queries import Parameter, PreparedQuery

from ..lifecycle import State
from ..models import Pod

REMNANTS = PreparedQuery(
    lambda: (
        Pod.objects.filter(cluster=Parameter("cluster"), origin=Pod.REMNANT, state=State.RUNNING.value)
        .order_by()
        .values_list("id", "namespace", "name", "not_before")
    )
)
