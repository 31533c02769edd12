"""Concurrent rebuilds of scheduler caches yield to other threads, and restore the interpreter's switch interval."""

from __future__ import annotations

import sys

import pytest

from hetsched.scheduling.interpreter_priority import SWITCH_INTERVAL_SECONDS, LowPriority


def test_last_rebuild_restores_the_switch_interval() -> None:
    before, giving_way = sys.getswitchinterval(), LowPriority()
    with giving_way:
        with giving_way:
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
    assert sys.getswitchinterval() == before
