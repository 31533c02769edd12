"""Decide consecutive pods of a batch in the compiled loop.

The loop and the scheduling cycle give the same results, including the best nodes of each pod, so a batch may use both.
The loop decides consecutive pods of one policy that it covers. The cycle decides all other pods: pods that fit nowhere,
gangs, nominated pods, pods that claimed a hold, and every pod that arrives alone. The machine code of the loop takes
seconds to load and about 120 MiB of memory. Each process loads it in the background after
`HETSCHED_COMPILE_AFTER_PODS` pods that the loop could have decided; until then the cycle decides.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile

import structlog
from django.conf import settings

from hetsched.contracts.api.decision import NodeOutcome
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.compiled import code_loader
from hetsched.engine.compiled.batch import covers
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.placement.scheduler_cache import SchedulerCache
from hetsched.placement.scheduling_queue.active_queue import PendingPod

from .interpreter_priority import low_priority

LONGEST_COMPILATION_SECONDS = 1800.0
_PAUSE_SECONDS = 0.5  # between tries to lock the compilation
log = structlog.get_logger(__name__)


class MachineCode:
    """Machine code of the compiled loop in this process; `is_loaded` is True once batches can use it."""

    def __init__(self) -> None:
        self.is_loaded = False
        self._decided = 0
        self._thread: threading.Thread | None = None

    def count(self, pods: int, policy: Policy) -> None:
        """Count pods that the loop could have decided, and start to load the code when they are many enough."""
        self._decided += pods
        if self._thread is None and self._decided >= settings.HETSCHED_COMPILE_AFTER_PODS:
            self._thread = threading.Thread(target=self._load, args=(policy,), name="machine-code", daemon=True)
            self._thread.start()

    def _load(self, policy: Policy) -> None:
        try:
            if not code_loader.can_be_cached():
                log.info("the compiled loop is not used: numba is missing or cannot cache machine code")
                return
            # If the cache lacks the code, compiling takes minutes. In this process, it would delay all other threads.
            program = ["nice", "-n", "19", sys.executable, "-m", code_loader.__name__]
            with _turn():
                subprocess.run(program, check=True, timeout=LONGEST_COMPILATION_SECONDS, stdin=subprocess.DEVNULL)
            with low_priority:
                code_loader.load(policy)
            self.is_loaded = True
        except Exception:
            log.exception("the machine code of the compiled loop could not be loaded")


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other process of this installation compiles, so that this one finds the code in the cache.

    The lock only saves processor time: the wait is limited, and file systems without locks are no error.
    """
    with open(code_loader.__file__) as module:
        until = time.monotonic() + LONGEST_COMPILATION_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(module, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE_SECONDS)
            except OSError:
                break
            else:
                break
        yield


machine_code = MachineCode()


class UpcomingPods:
    """The undecided pods of a batch in queue order.

    If the order follows placements (`is_fixed` False), the next pod is drawn after the pod before it was decided, and
    the pods after it are unknown.
    """

    def __init__(self, order: Iterable[PodSpec], pods: Mapping[str, PendingPod], *, is_fixed: bool) -> None:
        self._undrawn = (pods[spec.key] for spec in order)
        self._drawn: deque[PendingPod] = deque()
        self._most_drawn = None if is_fixed else 1

    def __bool__(self) -> bool:
        if not self._drawn:
            self._drawn.extend(islice(self._undrawn, self._most_drawn))
        return bool(self._drawn)

    def first(self, most: int) -> list[PendingPod]:
        """Return the next pods, at most `most`, as far as they are known."""
        return list(islice(self._drawn, most))

    def drop(self, count: int) -> None:
        """Remove the first `count` pods, which are decided."""
        for _ in range(count):
            self._drawn.popleft()


class CompiledRuns:
    """The compiled loop for the batches of one cluster; `specs` are the policies of a batch's pods by name."""

    def __init__(self, cache: SchedulerCache, specs: Mapping[str, PolicySpec], top_nodes: int) -> None:
        self._cache = cache
        self._specs = specs
        self._top_nodes = top_nodes

    def place(self, upcoming: UpcomingPods, most: int) -> list[tuple[Outcome, tuple[NodeOutcome, ...]]]:
        """Decide and assume the first upcoming pods, at most `most`; return their placements and best nodes.

        The result is empty if the cycle must decide the first pod.
        """
        if not machine_code.is_loaded:
            return []
        first = upcoming.first(1)[0]
        spec = self._specs.get(first.policy)
        if spec is None:
            return []
        loop = self._cache.batch_scheduler(spec)
        pods = upcoming.first(min(loop.ahead, most))
        run = takewhile(lambda pod: pod.policy == first.policy and pod.hold_id is None, pods)
        return loop.place_first([pod.spec for pod in run], self._top_nodes)

    def count(self, pods: Sequence[PendingPod]) -> None:
        """Count the pods of a decided batch for the decision to load the machine code."""
        spec = self._specs.get(pods[0].policy) if len(pods) > 1 else None
        if spec is not None and not machine_code.is_loaded:
            policy = self._cache.policy(spec)
            if covers(policy):
                machine_code.count(len(pods), policy)
