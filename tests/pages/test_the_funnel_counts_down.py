"""The funnel of a refused pod begins with all nodes and ends with what is left."""

from __future__ import annotations

from hetsched.contracts.decision import Reason
from web.pages.why import funnel


def test_the_funnel_counts_down_to_what_is_left() -> None:
    # Of 10 nodes, 4 + 2 are refused by the first filter and 4 by the second.
    reasons = (Reason("A", "isa-match", 4, ""), Reason("B", "isa-match", 2, ""), Reason("C", "gpu-fit", 4, ""))
    assert funnel(reasons) == [("", 10), ("isa-match", 4), ("gpu-fit", 0)]
    assert funnel((Reason("D", "request", 0, ""),)) == []
