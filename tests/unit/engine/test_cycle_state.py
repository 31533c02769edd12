"""Entries of the CycleState belong to their keys, not to names."""

from __future__ import annotations

import pytest

from hetsched.engine.framework.request import StateKey, cycle_state


def test_keys_of_one_name_are_different_entries() -> None:
    entries = cycle_state()
    first: StateKey[int] = StateKey("prepared")
    second: StateKey[str] = StateKey("prepared")
    entries[first] = 7
    assert (entries[first], entries.get(second), second in entries) == (7, None, False)
    with pytest.raises(KeyError, match=r"StateKey\('prepared'\)"):
        entries[second]


def test_text_is_a_key_too() -> None:
    entries = cycle_state()
    entries["my-plugin"] = [1, 2]
    assert entries["my-plugin"] == [1, 2]
