"""Why a pod is where it is, or nowhere: one decision, made ready to be shown.

Rule: reasons stand in the order of the filters, each node is charged to the first filter that refused it, for all the
reasons that this filter has.
"""

from __future__ import annotations

from typing import Any

from hetsched.contracts.decision import funnel
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
