from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.cpuset import MAX_CPU_ID, format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        (" \n", set()),
        ("0", {0}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("3,1-2,1", {1, 2, 3}),
        ("007", {7}),
        ("5-5", {5}),
        (" 0-1\n", {0, 1}),
        ("4-6,0-9,2,8-11,20", {*range(12), 20}),
    ],
)
def test_lists_name_cpus(text: str, cpus: set[int]) -> None:
    assert parse_cpuset(text) == cpus


@pytest.mark.parametrize(
    "text",
    ["0, 1", "1 -2", "3-1", "1-", "-1", "1,,2", "1,", ",1", "1-2-3", "a", "0-31:2/8", "all", "N", "65536", "0-65536",
     "999999", "\u0661", "1;2"],
)  # fmt: skip
def test_list_outside_the_kernels_format_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_cpuset(text)
    assert refused.value.code == "CpusetMalformed"


@pytest.mark.parametrize(
    ("cpus", "text"), [([], ""), ([1, 2], "1-2"), ([11, 8, 0, 1, 2, 3, 10], "0-3,8,10-11"), ([4, 4], "4")]
)
def test_formatted_cpuset_is_sorted_and_merged(cpus: list[int], text: str) -> None:
    assert format_cpuset(cpus) == text


@given(st.frozensets(st.integers(0, MAX_CPU_ID), max_size=200))
def test_formatted_cpuset_round_trips(cpus: frozenset[int]) -> None:
    assert parse_cpuset(format_cpuset(cpus)) == cpus


@pytest.mark.timeout(20)
def test_repeated_ranges_are_parsed() -> None:
    assert parse_cpuset(",".join(["0-65535"] * 30_000)) == frozenset(range(65536))


@given(st.text(alphabet="0123456789,- \n", max_size=40))
def test_any_list_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        cpus = parse_cpuset(text)
        assert parse_cpuset(format_cpuset(cpus)) == cpus
