"""Processor time of a process and its children, from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetsched.lab.bench.processes import cpu_of, spent

_BUSY = "import sys; sum(range(3_000_000)); print('done', flush=True); sys.stdin.read()"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_a_busy_child_is_counted_with_its_parent() -> None:
    before = cpu_of(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", _BUSY, "worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "done\n"
    used = spent(before, cpu_of(os.getpid()))
    child.stdin.close()
    child.stdout.close()
    child.wait()
    assert used["worker"] > 0
    assert "worker" not in cpu_of(os.getpid())


def test_the_one_that_used_most_comes_first() -> None:
    # 5.0 - 1.0 = 4.0; 0.5 - 0.0 = 0.5
    assert list(spent({"a": 1.0}, {"b": 0.5, "a": 5.0}).items()) == [("a", 4.0), ("b", 0.5)]
