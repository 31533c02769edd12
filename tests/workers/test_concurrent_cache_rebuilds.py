"""Concurrent rebuilds of scheduler caches yield to other threads, and restore the interpreter's switch interval."""

from __future__ import annotations

import sys

import pytest

from hetsched.scheduling.interpreter_priority import SWITCH_INTERVAL_SECONDS, LowPriority


def test_last_rebuild_restores_the_switch_interval() -> None:
    before, low_priority = sys.getswitchinterval(), LowPriority()
    with low_priority:
        with low_priority:
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
    assert sys.getswitchinterval() == before
