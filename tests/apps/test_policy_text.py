"""The text of a policy is its SchedulingPolicy object: parsing it gives the same policy."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.adapters.files import parse_cluster
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.policies.manifest import manifest_of


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_policy_text_round_trips(name: str) -> None:
    spec = BUILTIN[name]
    (read,) = parse_cluster([("text", manifest_of(spec).encode())]).policies
    assert msgspec.structs.replace(read, version=spec.version) == spec


def test_plugin_is_one_line_with_its_changed_values_only() -> None:
    text = manifest_of(BUILTIN["hetsched"])
    assert "    - {name: isa-match, weight: 100}\n    - {name: taints, weight: 3}\n" in text
    assert "    - {name: class-split, weight: 2, params: {strict: false}}\n" in text
