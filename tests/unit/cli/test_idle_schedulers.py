"""A benchmark waits until a scheduler has sent its reports, which follow after pauses."""

from __future__ import annotations

import pytest

from hetsched.cli.bench import rivals


def seconds_waited(monkeypatch: pytest.MonkeyPatch, busy: set[int]) -> int:
    """Wait for a scheduler that uses half a core in the seconds of `busy`; return the seconds."""
    clock = [0.0]
    monkeypatch.setattr(rivals, "cpu_of", lambda root: {"worker": 0.5 * sum(second < clock[0] for second in busy)})
    monkeypatch.setattr(rivals.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(rivals.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    rivals.wait_until_idle(1)
    return round(clock[0])


@pytest.mark.parametrize(
    ("busy", "seconds"),
    [
        (set(), 5),
        ({0, 1}, 7),  # busy until second 2, then idle for five seconds
        ({0, 4}, 10),  # a report follows after a pause of three seconds
        (set(range(100)), 60),
    ],
)
def test_scheduler_is_idle_after_five_quiet_seconds(
    monkeypatch: pytest.MonkeyPatch, busy: set[int], seconds: int
) -> None:
    assert seconds_waited(monkeypatch, busy) == seconds
