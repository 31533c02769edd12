"""List of the statements that skip the ORM's compiler, by their module and name.

A statement is listed if it runs for each batch of decisions, batch of watch events or REST request, or if it needs
a partial index that SQLite uses only with the index's condition as constants. Everything else uses the ORM. The ADR
`0021-prepared-statements` has the measurement; a test compares this list with the code.
"""

from __future__ import annotations

HOT_STATEMENTS = (
    # each transaction on a cluster
    "ledger._ADVANCE",
    "ledger._CLUSTER",
    "ledger._NODES",
    "change._OBJECTS_THERE",
    "change._STATES",
    "change._WORKLOADS",
    "change._move",
    "callbacks._HOOKS",
    "unschedulable_pods._QUEUE",
    "topics._SHOWN",
    # each batch of watch events
    "connections._CONNECTION",
    "pod_transitions._GIVEN_UP",
    "pod_transitions._LIVE",
    "bookings._ACTIVE",
    "bookings._END",
    "effective._RULES",
    "effective._VERSIONS",
    # each batch of decisions
    "ledger._COLUMNS",
    "evictions._SPARED",
    "node_backoffs._ACTIVE_REJECTIONS",
    "active_queue._due_after",
    "active_queue._first",
    "scheduler_cache._CHANGED",
    "scheduler_cache._NOMINATED",
    "effective._ACTIVE",
    # each REST request or submission
    "subject._GROUPS",
    "tokens._BY_KEY",
    "submissions._ANSWERED",
    "request_scope._NAMED",
    # partial indexes
    "orphaned_pods.REMNANTS",
    "pod_counts._COUNTED",
    "report._DUE",
)
