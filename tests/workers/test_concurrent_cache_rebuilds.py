"""Concurrent rebuilds of scheduler caches yield to other threads, and restore the interpreter's switch interval."""

from __future__ import annotations

import sys

import pytest

from hetsched.scheduling.interpreter_priority import GIVE_WAY_SECONDS, LowPriority


def test_the_last_one_sets_it_back() -> None:
    before, giving_way = sys.getswitchinterval(), LowPriority()
    with giving_way:
        with giving_way:
            assert sys.getswitchinterval() == pytest.approx(GIVE_WAY_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(GIVE_WAY_SECONDS)
    assert sys.getswitchinterval() == before
