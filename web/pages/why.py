"""Why a pod is where it is, or nowhere: one decision, made ready to be shown.

Rule: reasons stand in the order of the filters, each node is charged to the first that refused it, so the counts add
up to all nodes and what is left after each filter can be told.
"""

from __future__ import annotations

from typing import Any

from hetsched.contracts.decision import Reason
from hetsched.placement.models import Decision


def why(decision: Decision) -> dict[str, Any]:
    """Return what the template `why.html` shows of a decision."""
    most = max((reason.nodes for reason in decision.reasons), default=0)
    return {
        "decision": decision,
        "reasons": [
            {
                "reason": reason,
                "ratio": reason.nodes / most if most else None,
                # A message often names what is missing already.
                "missing": [name for name in reason.missing if name not in reason.message],
            }
            for reason in decision.reasons
        ],
        "funnel": funnel(decision.reasons),
        "top": [row for row in decision.top if row.feasible],
    }


def funnel(reasons: tuple[Reason, ...]) -> list[tuple[str, int]]:
    """Return (filter, nodes left after it), with all nodes first; nothing where no node was looked at."""
    refused: dict[str, int] = {}
    for reason in reasons:
        refused[reason.plugin] = refused.get(reason.plugin, 0) + reason.nodes
    left = sum(refused.values())
    if not left:
        return []
    steps = [("", left)]
    for plugin, nodes in refused.items():
        left -= nodes
        steps.append((plugin, left))
    return steps
