"""Start one of hetsched's programs with an injected fault: `python -m tests.system.faulty MODULE ARGUMENT…`.

HETSCHED_TEST_FAULT is a JSON object. `die` is an ordered list of points of a pod's lifecycle. The process group is
killed with SIGKILL at the first point whose file does not exist in `folder` yet, when the point is reached for the
`visit`-th time. The file is created, so the next process of this kind dies at the next point. `control` is a file with
the current faults: `messages`, the fault of task messages that this process sends, and `clock`, the offset of its wall
clock in seconds. The faults are injected without changes of hetsched's code.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

VARIABLE = "HETSCHED_TEST_FAULT"
# Points at which a process dies, in the order of a pod's lifecycle.
POINTS = {
    "c12": "everything listed, not written",
    "c1": "decided, nothing written",
    "c2": "some rows of a reservation inserted",
    "c3": "committed, not bound yet",
    "c13": "committed and bound, effects not written yet",
    "c14": "effects written, not committed yet",
    "c10": "two members of a gang bound, the others not",
    "c4": "binding sent, response not read",
    "c5": "response read, result not recorded",
    "c6": "bound, live events not sent",
    "c7": "live events sent, not marked as sent",
    "c11": "renewal of a lease begun",
    "c8": "end of a pod received, resources not freed",
    "c9": "resources freed, waiting pods not woken",
}
# Steps of a process that writes the effects of committed placements; see `tests.system.projection`.
EFFECT_STEPS = {
    "e1": "transaction begun, nothing written",
    "e2": "pods linked to their decisions",
    "e3": "audit entries written",
    "e4": "pods requeued",
    "e5": "node loads added",
    "e6": "cluster written: no effects are due any more",
    "e7": "workload states written",
    "e8": "live events written, not committed",
    "e9": "committed, live events not sent",
    "e10": "live events sent, not marked as sent",
    "e11": "live events marked as sent",
}
OFTEN = frozenset({"c2", "c4", "c10", "c11"})  # points that one batch visits more than once
_Call = tuple[tuple[Any, ...], dict[str, Any]]


def fault(**fields: Any) -> dict[str, str]:
    """Return the environment variable that injects a fault into a program."""
    return {VARIABLE: json.dumps(fields)}


# -- kill points -------------------------------------------------------------------------------------------------------


class _Points:
    """Kill the process at the first point that has no file yet; for points in `OFTEN`, at the `visit`-th visit."""

    def __init__(self, names: list[str], folder: Path, visit: int) -> None:
        self._point = next((name for name in names if not (folder / name).exists()), "")
        self._folder, self._left, self._lock = folder, visit if self._point in OFTEN else 1, threading.Lock()

    def reach(self, name: str) -> None:
        if name != self._point:
            return
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
            (self._folder / name).touch()
            os.killpg(os.getpgrp(), signal.SIGKILL)
            time.sleep(60)  # the signal is being delivered

    def around(
        self,
        owner: Any,
        attribute: str,
        *,
        before: str = "",
        after: str = "",
        when: Callable[..., object] | None = None,
    ) -> None:
        """Wrap a function so that a point is reached before or after its call."""
        real = getattr(owner, attribute)  # for every point, so that every process of a test detects a renamed function
        if not self._point or self._point not in (before, after):
            return

        def passing(*arguments: Any, **named: Any) -> Any:
            meant = when is None or when(*arguments, **named)
            if meant and before:
                self.reach(before)
            result = real(*arguments, **named)
            if meant and after:
                self.reach(after)
            return result

        setattr(owner, attribute, passing)


def _is_binding(api: Any, method: str, path: str, *_: Any, **more: Any) -> bool:
    return path.endswith("/binding") and "dryRun" not in (more.get("query") or {})


def _is_of_a_gang(api: Any, method: str, path: str, *_: Any, **more: Any) -> bool:
    return _is_binding(api, method, path, **more) and "/gang-" in path


def _sends_binding(pipeline: Any) -> bool:
    return b"/binding HTTP/1.1" in pipeline.unsent


def _sends_binding_of_a_gang(pipeline: Any) -> bool:
    return _sends_binding(pipeline) and b"/gang-" in pipeline.unsent


def _has_due_effects(change: Any, *_: Any) -> bool:
    return change.cluster.effects_due_since is not None


def _frees(cluster_id: int, changes: Any, **_: Any) -> bool:
    return bool(changes.pods_gone)


def _arm_kill_point(names: list[str], folder: str, visit: int) -> None:
    import django

    django.setup()
    from hetsched.adapters.kubernetes.api import Api
    from hetsched.adapters.kubernetes.parallel_calls import PipelinedConnection
    from hetsched.journal import publish
    from hetsched.placement.actions.change import ClusterTransaction
    from hetsched.scheduling import arrivals, binding_cycle, bindings_in_flight, scheduling_loop
    from hetsched.scheduling import informer as follower
    from hetsched.scheduling.leases import Leases
    from hetsched.storage import bulk_rows as rows

    points = _Points(names, Path(folder), visit)
    _arm_effect_steps(points)
    points.around(follower, "apply_changes", before="c12")
    points.around(scheduling_loop, "record", before="c1")
    points.around(arrivals, "record_placed_arrivals", before="c1")
    points.around(rows, "insert", after="c2")
    points.around(scheduling_loop, "record", after="c3")
    points.around(arrivals, "record_placed_arrivals", after="c3")
    points.around(ClusterTransaction, "_write_placement_effects", before="c13", when=_has_due_effects)
    points.around(ClusterTransaction, "_write_placement_effects", after="c14", when=_has_due_effects)
    points.around(Api, "send", after="c4", when=_is_binding)
    points.around(Api, "send", after="c10", when=_is_of_a_gang)
    points.around(PipelinedConnection, "flush", after="c4", when=_sends_binding)
    points.around(PipelinedConnection, "flush", after="c10", when=_sends_binding_of_a_gang)
    points.around(binding_cycle, "apply_while_binding", before="c5")
    points.around(bindings_in_flight, "confirm", before="c5")
    points.around(publish, "_try_to_send", before="c6")
    points.around(publish, "_send", after="c7")
    points.around(Leases, "renew", before="c11")
    points.around(follower, "apply_changes", before="c8", when=_frees)
    points.around(follower, "apply_changes", after="c9", when=_frees)


def _arm_effect_steps(points: _Points) -> None:
    from hetsched.journal import publish
    from hetsched.placement.actions import change
    from hetsched.placement.actions.change import ClusterTransaction

    points.around(ClusterTransaction, "_write_placement_effects", before="e1", when=_has_due_effects)
    points.around(change, "write_values", after="e2")
    points.around(change, "record_many", after="e3")
    points.around(ClusterTransaction, "_requeue", after="e4", when=_has_due_effects)
    points.around(change, "add_loads", after="e5")
    points.around(change, "write_columns", after="e6")
    points.around(ClusterTransaction, "_settle_workloads", after="e7")
    points.around(change, "publish_many", after="e8")
    points.around(publish, "_try_to_send", before="e9")
    points.around(publish, "_send", after="e10")
    points.around(publish, "_mark", after="e11")


# -- temporary faults --------------------------------------------------------------------------------------------------


class Control:
    """The faults that a test currently requests, in a JSON file that the test may change; it is read again a few times
    a second.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._wish, self._read_at = path, {}, -1.0

    def __call__(self, name: str) -> Any:
        now = time.monotonic()
        if now - self._read_at > 0.2:
            self._read_at = now
            self._wish = json.loads(self._path.read_text() or "{}") if self._path.exists() else {}
        return self._wish.get(name)


def _disturb_messages(wished: Control, share: float = 0.3) -> None:
    """Send each message twice (`double`), five times in random order among the latest messages (`shuffle`), or not at
    all with probability `share` (`drop`).
    """
    from celery import current_app
    from kombu.messaging import Producer

    real, draw = Producer.publish, random.Random(os.getpid())
    held: list[_Call] = []
    lock = threading.Lock()

    def release_messages() -> None:
        while True:
            time.sleep(0.05)
            with lock:
                draw.shuffle(held)
                removed, held[:] = held[len(held) // 2 :], held[: len(held) // 2]
            for arguments, named in removed:
                with current_app.producer_pool.acquire(block=True) as producer:
                    real(producer, *arguments, **named)

    letting_go: set[int] = set()  # IDs of processes in which the thread runs, because a fork does not copy it

    def publish(self: Any, *arguments: Any, **named: Any) -> Any:
        match wished("messages"):
            case "drop" if draw.random() < share:
                return None
            case "double":
                real(self, *arguments, **named)
            case "shuffle":
                with lock:
                    held.extend([(arguments, dict(named))] * 5)
                if os.getpid() not in letting_go:
                    letting_go.add(os.getpid())
                    threading.Thread(target=release_messages, daemon=True).start()
                return None
        return real(self, *arguments, **named)

    Producer.publish = publish


def _step_clock(wished: Control) -> None:
    """Shift the wall clock of this process; monotonic clocks are not changed."""
    from datetime import datetime, timedelta

    from django.utils import timezone

    now, real = timezone.now, time.time

    def wrong() -> datetime:
        return now() + timedelta(seconds=wished("clock") or 0.0)

    timezone.now = wrong
    time.time = lambda: real() + (wished("clock") or 0.0)


def install_faults(wish: Mapping[str, Any]) -> None:
    """Install the requested faults in this process."""
    if "control" in wish:
        wished = Control(Path(wish["control"]))
        _step_clock(wished)
        _disturb_messages(wished)
    if "die" in wish:
        _arm_kill_point(wish["die"], wish["folder"], wish.get("visit", 1))


def main() -> None:
    install_faults(json.loads(os.environ[VARIABLE]))
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
