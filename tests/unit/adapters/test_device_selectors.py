"""Device selectors are true, false, or unknown with a reason; their evaluation cost is limited."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.adapters.objects.cel_selectors import MOST_CHARACTERS, expression, quantity, version

DEVICE: dict[str, Any] = {
    "driver": "gpu.example.com",
    "attributes": {"gpu.example.com": {"model": "A100", "index": 3, "healthy": True, "driver": version("1.10.0")}},
    "capacity": {"gpu.example.com": {"memory": quantity("40Gi")}},
}
OWN = 'device.attributes["gpu.example.com"]'
MEMORY = 'device.capacity["gpu.example.com"].memory'


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('device.driver == "gpu.example.com"', True),
        (f'{OWN}.model == "A100" && {OWN}.healthy', True),
        (f'{OWN}.model in ["H100", "B200"]', False),
        (f'{OWN}.model.startsWith("A") && {OWN}.index < 3', False),
        (f'{OWN}.model.matches("^A[0-9]+$")', True),
        # 40Gi = 42,949,672,960 bytes, more than 40G.
        (f'{MEMORY}.isGreaterThan(quantity("40G"))', True),
        (f'{MEMORY}.compareTo(quantity("40Gi")) == 0', True),
        (f'{MEMORY}.isLessThan(quantity("40960Mi"))', False),
        # Versions are not compared as texts: 1.10 comes after 1.9.
        (f'{OWN}.driver.isGreaterThan(semver("1.9.0"))', True),
        (f'{OWN}.driver.isLessThan(semver("1.10.0-rc.1"))', False),
        ('"net.example.com" in device.attributes', False),
        (f"has({OWN}.model)", True),
    ],
)
def test_decidable_expressions_are_evaluated(text: str, answer: bool) -> None:
    assert expression(text).evaluate(DEVICE) == (answer, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'{OWN}.speed == "x"', "the device has no speed"),
        ('device.attributes["net.example.com"].mtu > 1', "the device has no net.example.com"),
        (f"{OWN}.index", "the expression does not return a Boolean"),
        (f'{OWN}.index < "3"', "No such overload"),
        ("device ==", "Failed to parse"),
        ("absent(1)", "absent"),
        (f"{OWN}.index / 0 == 1", "division by zero"),
        ("", "parse"),
        (f"[1, 2].all(a, [1, 2].all(b, a == b)) || {OWN}.healthy", "more than 1 comprehension"),
        (f'device.driver == "{"x" * MOST_CHARACTERS}"', "more than 2048 characters"),
    ],
)
def test_undecidable_expressions_are_unknown_with_the_reason(text: str, reason: str) -> None:
    answer, explanation = expression(text).evaluate(DEVICE)
    assert answer is None
    assert reason in explanation


def test_failed_evaluation_has_kube_schedulers_message() -> None:
    assert expression(f"{OWN}.speed > 1").evaluate(DEVICE) == (None, "CEL runtime error: the device has no speed")


def test_irrelevant_unknown_fact_is_ignored() -> None:
    assert expression(f'{OWN}.speed == "x" || true').evaluate(DEVICE) == (True, "")


@pytest.mark.parametrize("older", ["1.9.9", "1.10.0-alpha", "1.10.0-rc.1"])
def test_versions_follow_their_precedence(older: str) -> None:
    assert version(older) < version("1.10.0")
    with pytest.raises(ValueError, match="is not a semantic version"):
        version("1.10")
