"""The process that watches live clusters."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from hetsched.scheduling import informer_process


@pytest.fixture
def _restored() -> Iterator[None]:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_restored")
def test_threads_wait_less_than_a_millisecond_for_the_interpreter() -> None:
    ended = threading.Event()
    ended.set()
    informer_process.main(lambda cluster: None, ended)  # type: ignore[arg-type, return-value]
    assert sys.getswitchinterval() < 0.001
