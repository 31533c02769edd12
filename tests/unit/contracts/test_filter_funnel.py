"""The funnel of a rejected pod begins with all nodes and ends with the remaining ones."""

from __future__ import annotations

from hetsched.contracts.api.decision import Reason, funnel


def test_funnel_counts_down_to_the_remaining_nodes() -> None:
    # Of 10 nodes, the first filter rejects 6: 4 and 3, one of them for both reasons. The second rejects the other 4.
    reasons = (
        Reason("A", "isa-match", 4, "", before=10, after=4),
        Reason("B", "isa-match", 3, "", before=10, after=4),
        Reason("C", "gpu-fit", 4, "", before=4, after=0),
    )
    assert funnel(reasons) == [("", 10), ("isa-match", 4), ("gpu-fit", 0)]


def test_rejection_before_filtering_has_no_funnel() -> None:
    assert funnel((Reason("D", "request", 0, ""),)) == []
    assert funnel(()) == []
