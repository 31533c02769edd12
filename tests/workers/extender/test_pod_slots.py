"""Turns of pods: each holder has its time, and no caller waits beyond its deadline."""

from __future__ import annotations

import threading
import time

from hetsched.scheduling.extender.pod_slots import MOST_MISSED, PodSlots

NEVER = float("inf")


def test_slot_lasts_its_full_time_for_each_holder() -> None:
    """Regression: a caller that had waited for the first pod cut the turn of the second one short."""
    patience = 0.6
    turns, taken = PodSlots(patience), []

    def take(uid: str) -> None:
        turns.begin(uid, NEVER)
        taken.append(time.monotonic())

    turns.begin("first", NEVER)
    time.sleep(patience / 2)
    callers = [threading.Thread(target=take, args=(uid,)) for uid in ("second", "third")]
    for thread in callers:
        thread.start()
    turns.end("first", bound=True)
    for thread in callers:
        thread.join()
    assert taken[1] - taken[0] >= 0.9 * patience


def test_caller_waits_at_most_until_its_deadline() -> None:
    turns = PodSlots(60)
    turns.begin("first", NEVER)
    turns.begin("second", time.monotonic() + 0.05)
    turns.begin("second", NEVER)  # it has the turn


def test_after_several_timeouts_no_caller_waits_until_a_pod_is_bound() -> None:
    turns = PodSlots(60)
    for number in range(MOST_MISSED + 2):
        turns.begin(f"p{number}", 0.0)
    turns.begin("next", NEVER)
    turns.end("next", bound=True)
    turns.begin("first", NEVER)
    late = threading.Thread(target=turns.begin, args=("second", NEVER), daemon=True)
    late.start()
    late.join(0.2)
    assert late.is_alive()
    turns.end("first")
    late.join(30)
    assert not late.is_alive()
