"""Credential of an allowed program, kept in the memory of this process until it ends.

Invariant: the credential is in no file, log record, message or database row. The exception is a client certificate,
which the TLS library reads from files that only this process may read.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError

from .allowed_programs import ExecPolicy
from .execution import ProgramFailure, run_program
from .plugin import ExecCredential, ExecPlugin, exec_info, failed, read_credential

SECONDS = 30.0
# A credential is replaced this long before its end, and a program runs at most once in this time.
EARLY_SECONDS = 30.0
PAUSE_SECONDS = 10.0
MOST_KEPT = 256
_HINT = "Run the program as the user of the server, or check its login"


class KeptCredential:
    """The current credential of a connection; safe for use from several threads.

    `cluster` is the value of `spec.cluster` for the program, and `clock` returns Unix time.
    """

    def __init__(
        self, plugin: ExecPlugin, policy: ExecPolicy, cluster: Mapping[str, Any], clock: Callable[[], float] = time.time
    ) -> None:
        self._plugin, self._cluster, self._clock = plugin, cluster, clock
        self._words = [policy.program_of(plugin), *(plugin.args or ())]
        self._environment = policy.environment_of(plugin, os.environ)
        self._lock = threading.Lock()
        self._held: ExecCredential | None = None
        self._failure: InputError | None = None
        self._ran_at = self._ends_at = float("-inf")

    def __repr__(self) -> str:
        return "KeptCredential(…)"

    def current(self) -> ExecCredential:
        """Return the credential, which is requested from the program if there is none or its end is near.

        Raises: InputError `ExecPluginFailed`, `ExecCredentialInvalid`; a failure is repeated until the program runs
        again, after PAUSE_SECONDS.
        """
        with self._lock:
            now = self._clock()
            if now - self._ran_at >= PAUSE_SECONDS and (self._held is None or now >= self._ends_at):
                self._request(now)
            if self._failure is not None:
                raise self._failure
            assert self._held is not None
            return self._held

    def may_block(self) -> bool:
        """Return True if `current` would run the program or wait for a run."""
        if self._lock.locked():
            return True
        now = self._clock()
        return now - self._ran_at >= PAUSE_SECONDS and (self._held is None or now >= self._ends_at)

    def reject(self) -> None:
        """Request another credential at the next use, because the API server rejected this one."""
        with self._lock:
            self._ends_at = float("-inf")

    def _request(self, now: float) -> None:
        self._ran_at, self._held, self._failure = now, None, None
        info = exec_info(self._plugin, interactive=False, cluster=self._cluster)
        environment = {**self._environment, "KUBERNETES_EXEC_INFO": info}
        try:
            output = run_program(self._words, environment, seconds=SECONDS, quiet=True)
            self._held = read_credential(self._plugin, output)
        except ProgramFailure as failure:
            self._failure = failed(self._plugin, failure.reason, _HINT)
        except InputError as error:
            self._failure = error
        else:
            end = self._held.expiration_timestamp
            self._ends_at = float("inf") if end is None else end.timestamp() - EARLY_SECONDS


_kept: dict[bytes, KeptCredential] = {}  # by digest of plugin, policy and cluster
_lock = threading.Lock()


def kept_credential(plugin: ExecPlugin, policy: ExecPolicy, cluster: Mapping[str, Any]) -> KeptCredential:
    """Return the credential of a connection in this process, so that clients of one connection share a run."""
    key = hashlib.sha256(encode([plugin, policy, cluster])).digest()
    with _lock:
        if key not in _kept:
            while len(_kept) >= MOST_KEPT:
                _kept.pop(next(iter(_kept)))
            _kept[key] = KeptCredential(plugin, policy, cluster)
        return _kept[key]
