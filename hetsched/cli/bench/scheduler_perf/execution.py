"""Run the operations of one workload with one scheduler, and measure its pods.

As in scheduler_perf, the scheduler starts before the operations. A warm-up pod shows that it is ready. Pods of an
operation that is not measured are created and waited for, unless the operation skips the wait. Churn and deletions at a
rate run in the background until the last operation ends. The throughput is the number of measured pods divided by the
time from the first creation request to the last binding. With `backlog`, the scheduler is suspended while the measured
pods are created, and the time begins when it is resumed: this is the throughput of the scheduler alone. Terminating
pods are deleted at once, because there are no kubelets.
Source: test/integration/scheduler_perf/executor.go.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.lab.bench.processes import suspended

from ..cluster_objects import AT_ONCE, PodWatch
from ..rivals import Rival, run_scheduler, wait_until_idle
from .configuration import PerfWorkload
from .objects import BASE_NODE, BASE_POD, ObjectFactory, delete_all
from .operations import (
    Barrier,
    Churn,
    CreateAny,
    CreateNamespaces,
    CreateNodes,
    CreatePods,
    CreateResourceDriver,
    DeletePods,
    Operation,
    Sleep,
)

PATIENCE_SECONDS = 60.0
_START_SECONDS = 120.0
_SETTLE_SECONDS = 1.0


class Measurement(msgspec.Struct, frozen=True):
    """Results of one run: pods/s bound and created, and the sorted times from creation to binding in ms.

    If the pods are a backlog, the times are those from the resumption of the scheduler.
    `missing` is the number of pods that were not bound, with the `reason` if the run ended early.
    """

    rate: float = 0.0
    created: float = 0.0
    waited: tuple[float, ...] = ()
    missing: int = 0
    reason: str = ""


class RunFailed(Exception):
    """Raised within a run that cannot go on; the text contains the reason."""


def measure(
    api: Api, rival: Rival, kubeconfig: Path, folder: Path, workload: PerfWorkload, *, backlog: bool = False
) -> Measurement:
    """Run a workload with a scheduler that has `folder` for its files, and delete all objects.

    With `backlog`, the scheduler is suspended while measured pods are created. Raises: ApiFailure.
    """
    try:
        with PodWatch(api, evict=True) as watch, run_scheduler(rival, kubeconfig, folder) as running:
            run = _Run(ObjectFactory(api, rival.name), watch, workload, running.process, folder / "log", backlog)
            try:
                return run.measured()
            except (ApiFailure, RunFailed) as failure:
                return Measurement(missing=run.measured_count, reason=str(failure))
            finally:
                run.end()
    finally:
        delete_all(api)


class _Run:
    def __init__(
        self,
        objects: ObjectFactory,
        watch: PodWatch,
        workload: PerfWorkload,
        process: subprocess.Popen[bytes],
        log: Path,
        backlog: bool,
    ) -> None:
        self._objects = objects
        self._watch = watch
        self._workload = workload
        self._process = process
        self._log = log
        self._backlog = backlog
        self._ended = threading.Event()
        self._background: list[threading.Thread] = []
        self._unfinished: dict[str, list[str]] = {}
        self._measurement = Measurement()
        self.measured_count = sum(
            operation.count
            for operation in workload.operations
            if isinstance(operation, CreatePods) and operation.collect_metrics
        )

    def measured(self) -> Measurement:
        """Run the operations in order; return the measurement. Raises: ApiFailure, RunFailed."""
        if self._wait([self._objects.warm_up()], patience=_START_SECONDS):
            raise RunFailed(self._reason(_START_SECONDS))
        self._objects.end_warm_up()
        time.sleep(_SETTLE_SECONDS)
        wait_until_idle(self._process.pid)  # all processes of the scheduler have started
        for number, operation in enumerate(self._workload.operations):
            self._perform(operation, f"namespace-{number}")
        return self._measurement

    def end(self) -> None:
        """End the operations in the background."""
        self._ended.set()
        for thread in self._background:
            thread.join()

    def _perform(self, operation: Operation, namespace: str) -> None:
        match operation:
            case CreateNodes():
                self._create_nodes(operation)
            case CreateNamespaces():
                for number in range(operation.count):
                    body = self._rendered(operation.namespace_template_path, {"kind": "Namespace"}, number, 1)
                    self._objects.namespace(f"{operation.prefix}-{number}", body)
            case CreatePods():
                self._create_pods(operation, operation.namespace or namespace)
            case DeletePods():
                keys = [key for key in list(self._watch.present) if key.startswith(f"{operation.namespace}/")]
                if operation.skip_wait_to_completion:
                    self._in_background(lambda: self._delete_pods(keys, operation.delete_pods_per_second))
                else:
                    self._delete_pods(keys, operation.delete_pods_per_second)
            case Churn():
                self._objects.namespace(operation.namespace or namespace)
                self._in_background(lambda: self._churn(operation, operation.namespace or namespace))
            case Barrier():
                wanted = operation.namespaces or tuple(self._unfinished)
                keys = [key for one in wanted for key in self._unfinished.get(one, ())]
                attempted = operation.stage_requirement == "Attempted"
                if missing := self._wait(keys, attempted=attempted):
                    stage = operation.stage_requirement
                    raise RunFailed(f"{len(missing)} of {len(keys)} pods are not {stage}: {self._reason()}")
            case Sleep():
                self._ended.wait(operation.seconds)
            case CreateAny():
                if operation.namespace:
                    self._objects.namespace(operation.namespace)
                bodies = [
                    self._objects.complete(self._rendered(operation.template_path, {}, index, operation.count))
                    for index in range(operation.count)
                ]
                self._objects.create_many(bodies, operation.namespace)
            case CreateResourceDriver():
                nodes = [name for name in self._objects.nodes if fnmatchcase(name, operation.nodes)]
                devices = operation.max_claims_per_node
                with ThreadPoolExecutor(AT_ONCE) as threads:
                    driver = operation.driver_name
                    list(threads.map(lambda node: self._objects.device_slice(driver, node, devices), nodes))

    def _rendered(self, path: str, default: dict[str, Any], index: int, count: int) -> dict[str, Any]:
        return self._workload.templates[path].render(index, count) if path else deepcopy(default)

    def _create_nodes(self, operation: CreateNodes) -> None:
        bodies = []
        for index in range(operation.count):
            body = self._rendered(operation.node_template_path, BASE_NODE, index, operation.count)
            labels = body.setdefault("metadata", {}).setdefault("labels", {})
            if label := operation.label_node_prepare_strategy:
                labels[label.label_key] = label.label_values[index % len(label.label_values)]
            if label := operation.unique_node_label_strategy:
                labels[label.label_key] = f"unique-{len(self._objects.nodes) + index}"
            bodies.append(self._objects.complete(body))
        self._objects.create_many(bodies)

    def _create_pods(self, operation: CreatePods, namespace: str) -> None:
        self._objects.namespace(namespace)
        pods: list[tuple[str, bytes]] = []
        for index in range(operation.count):
            body = self._objects.complete(self._rendered(operation.pod_template_path, BASE_POD, index, operation.count))
            pods.append((f"{namespace}/{body['metadata']['name']}", json.dumps(body).encode()))
        sent: dict[str, float] = {}

        def create(pod: tuple[str, bytes]) -> None:
            sent[pod[0]] = time.monotonic()
            self._objects.post(PODS, pod[1], namespace)

        is_backlog = self._backlog and operation.collect_metrics and not operation.skip_wait_to_completion
        began = time.monotonic()
        with suspended(self._process.pid) if is_backlog else nullcontext(), ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(create, pods))
        created = time.monotonic()
        created_rate = len(sent) / max(created - began, 1e-3)
        if is_backlog:
            began, sent = created, dict.fromkeys(sent, created)
        if operation.skip_wait_to_completion:
            self._unfinished.setdefault(namespace, []).extend(sent)
            return
        missing = self._wait(sent)
        if not operation.collect_metrics:
            if missing:
                text = f"{len(missing)} of {len(sent)} pods of an operation that is not measured are not bound"
                raise RunFailed(f"{text}: {self._reason()}")
            return
        bound = [self._watch.bound[key] for key in sent if key in self._watch.bound]
        waited = sorted(1000 * (self._watch.bound[key] - at) for key, at in sent.items() if key in self._watch.bound)
        rate = len(bound) / max(max(bound) - began, 1e-3) if bound else 0.0
        self._measurement = Measurement(
            rate, created_rate, tuple(waited), len(missing), self._reason() if missing else ""
        )

    def _wait(
        self, keys: Sequence[str] | dict[str, float], patience: float = PATIENCE_SECONDS, *, attempted: bool = False
    ) -> set[str]:
        return self._watch.wait_for(
            keys, attempted=attempted, patience=patience, ended=lambda: self._process.poll() is not None
        )

    def _reason(self, patience: float = PATIENCE_SECONDS) -> str:
        """Return why a wait ended: the scheduler's exit code with the last line of its log, or the lost patience."""
        if self._process.poll() is None:
            return f"no further pod for {patience:.0f} s"
        lines = self._log.read_text(errors="replace").splitlines()
        return f"the scheduler ended with exit code {self._process.returncode}: {lines[-1] if lines else ''}"

    # -- in the background ---------------------------------------------------------------------------------------------

    def _in_background(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._background.append(thread)
        thread.start()

    def _delete_pods(self, keys: Sequence[str], per_second: int) -> None:
        began = time.monotonic()
        for number, key in enumerate(keys):
            if per_second and self._ended.wait(max(0.0, began + (number + 1) / per_second - time.monotonic())):
                return
            namespace, _, name = key.partition("/")
            self._objects.delete("Pod", namespace, name)

    def _churn(self, operation: Churn, namespace: str) -> None:
        """Create objects at an interval, without end or up to `number`; or create `number` and delete them, in turns.

        Like scheduler_perf, a failed call is not repeated.
        """
        templates = [self._workload.templates[path] for path in operation.template_paths]
        recreate = operation.mode == "recreate"
        names: list[list[str]] = [[""] * operation.number for _ in templates]
        count = 0
        while not self._ended.wait(operation.interval_milliseconds / 1000):
            if not recreate and operation.number and count >= operation.number:
                return
            for template, known in zip(templates, names, strict=True):
                slot = count % operation.number if recreate else 0
                with suppress(ApiFailure):
                    if recreate and known[slot]:
                        name, known[slot] = known[slot], ""
                        self._objects.delete(template.kind, namespace, name)
                        continue
                    name = self._objects.create(self._objects.complete(template.render(count, 1)), namespace)
                    if recreate:
                        known[slot] = name
            count += 1
