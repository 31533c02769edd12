"""The published results of the openb study: the meaning of each column."""

from __future__ import annotations

import pytest

from hetsched.adapters.traces.openb_results import read_published
from hetsched.contracts.errors import InputError

HEADER = "trace,policy,seeds,alloc_pct_at_80,at_100,sd_at_100,frag_pct_of_total_gpu_at_50,frag_at_80,frag_ratio_at_80\n"


def test_results_are_keyed_by_trace_and_policy() -> None:
    found = read_published((HEADER + "default,06-FGD,10,80.02,95.39,0.2,8.93,,44\n").encode(), "results.csv")
    assert found == {("default", "fgd"): ({80: 80.02, 100: 95.39}, {50: 8.93})}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("policy,trace\n", "results.csv:1"),
        (HEADER + "default,06-FGD\n", "results.csv:2"),
        (HEADER + "default,06-FGD,10,much,95,0,8,5,44\n", "results.csv:2 alloc_pct_at_80"),
    ],
)
def test_other_file_is_rejected_with_its_place(text: str, place: str) -> None:
    with pytest.raises(InputError) as refused:
        read_published(text.encode(), "results.csv")
    assert refused.value.place == place
