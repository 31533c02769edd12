"""`generateName`: suffixes derived from the inputs of the name, or from the number without inputs."""

import re

from hetsched.adapters.objects.manifests import generated_name


def test_generated_names_are_deterministic_and_distinct() -> None:
    names = {generated_name("ci-", made_of, number) for made_of in ("a", "b") for number in range(100)}
    assert len(names) == 200
    assert generated_name("ci-", "a", 7) == generated_name("ci-", "a", 7)


def test_generated_name_is_valid_for_any_prefix() -> None:
    for stem in ("ci-", "x" * 60 + "-", "x" * 250):
        name = generated_name(stem, "a", 0)
        assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 63


def test_suffix_without_inputs_is_the_number() -> None:
    assert [generated_name("ci-", "", number) for number in range(2)] == ["ci-0", "ci-1"]
