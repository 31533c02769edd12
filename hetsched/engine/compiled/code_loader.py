"""Load the machine code of the compiled loop before a batch needs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy


def load(policy: Policy) -> None:
    """Compile the loop for the formulas of a policy, or read it from the cache: place no pod on an empty cluster."""
    from .batch import BatchCache

    cache = BatchCache(Scheduler(ClusterState([]), policy))
    cache.place([], [], [], np.zeros(0, np.int64), np.zeros(0, np.bool_))


def can_be_cached() -> bool:
    """Return whether numba is installed and can cache machine code on disk."""
    from hetsched.engine.jit import HAS_NUMBA

    if not HAS_NUMBA:
        return False
    from . import kernel

    return kernel.KEPT


def compiled_function(policy: Policy) -> Any:
    """Return numba's function of the loop with the formulas of a policy; it may not be compiled yet."""
    from . import kernel

    return kernel.loop_of(policy.formulas).place
