"""Machine code of the compiled loop in this process.

The machine code takes about a second to load and 60 MiB of memory, and minutes to compile. An informer process loads it
when it starts, if the cache on disk contains it. Otherwise a process loads it in the background after
`HETSCHED_COMPILE_AFTER_PODS` pods that the loop could have decided.
Run as a program, this module compiles the loop with the formulas of all registered plugins into the cache. It then
writes a mark beside the code, whose name depends on everything that numba compares before it uses cached code. A
process that finds the mark can load the code without the risk that numba compiles it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import structlog
from django.conf import settings

from hetsched.engine.compiled import code_loader
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry

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
            self._thread = threading.Thread(target=self.load, args=(policy,), name="machine-code", daemon=True)
            self._thread.start()

    def load(self, policy: Policy) -> None:
        """Load the code; another program compiles it first if the cache on disk lacks it."""
        try:
            if not code_loader.can_be_cached():
                log.info("the compiled loop is not used: numba is missing or cannot cache machine code")
                return
            if not _is_cached(policy):
                # Compiling takes minutes. In this process, it would delay all other threads.
                program = ["nice", "-n", "19", sys.executable, "-m", __spec__.name]
                with _turn():
                    subprocess.run(program, check=True, timeout=LONGEST_COMPILATION_SECONDS, stdin=subprocess.DEVNULL)
            with low_priority:
                code_loader.load(policy)
            self.is_loaded = True
        except Exception:
            log.exception("the machine code of the compiled loop could not be loaded")


def _is_cached(policy: Policy) -> bool:
    """Return whether the cache on disk contains the machine code for the formulas of a policy, for this processor."""
    if not code_loader.can_be_cached():
        return False
    mark = _mark(policy)
    try:
        written = [index.stat().st_mtime_ns for index in mark.parent.glob(f"*{mark.name.partition('.')[0]}*.nbi")]
        # A newer index may be that of another version of the source, which replaces the code of this one.
        return bool(written) and mark.stat().st_mtime_ns >= max(written)
    except OSError:
        return False


def _mark(policy: Policy) -> Path:
    """Return the path of the mark; its name contains a digest of the processor and the versions of code and numba."""
    import numba
    from llvmlite import binding

    place = code_loader.compiled_function(policy)
    source = os.stat(place.py_func.__code__.co_filename)
    machine = binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    compared = numba.__version__, source.st_mtime_ns, source.st_size, machine
    digest = blake2b(repr(compared).encode(), digest_size=8).hexdigest()
    return Path(place.stats.cache_path) / f"{place.py_func.__qualname__}.{digest}.compiled"


def compile_into_cache() -> None:
    """Compile the loop for all registered plugins into the cache, unless it is there, and write the mark."""
    policy = compile_policy(BUILTIN[DEFAULT], load_registry())
    code_loader.load(policy)
    if code_loader.can_be_cached():
        _mark(policy).touch()


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other process of this installation compiles, so that this one finds the code in the cache.

    The lock only saves processor time: the wait is limited, and file systems without locks are no error.
    """
    with open(__file__) as module:
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


def load_cached_code() -> None:
    """Load the code now if the cache on disk contains it; failures are logged."""
    try:
        policy = compile_policy(BUILTIN[DEFAULT], load_registry())
        is_cached = _is_cached(policy)
    except Exception:
        log.exception("the machine code of the compiled loop cannot be found")
        return
    if is_cached:
        machine_code.load(policy)


if __name__ == "__main__":
    compile_into_cache()
