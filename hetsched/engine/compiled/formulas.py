"""Inputs of the score formulas of the compiled loop, per plugin.

An entry of `TERMS` under the plugin's name selects the formula of `terms` for a shape and its numbers, read from the
plugin's parameters and from the result of its PreScore. SKIP: the plugin skips the shape. None: the formula does not
cover these parameters, so the shape is left to the cycle. Shapes with the same `key` get the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.engine.cluster.columns import UNKNOWN, USAGE_RESOURCES, Floats
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.node_class import is_gpu_pod
from hetsched.engine.framework.policy import ActivePlugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Skip
from hetsched.engine.gpu.fragmentation import POINTS_PER_GPU

from .terms import BALANCED_ALLOCATION, GPU_HEADROOM, IHEP_CPU, IHEP_GPU, LEAST_ALLOCATED, NASH_GAIN, TIGHTEST_FIT

Given = tuple[int, Sequence[float]] | Skip | None


def _same_for_all(shape: Shape) -> None:
    return None


class FormulaInputs(NamedTuple):
    """Formula inputs of one plugin.

    `given(plugin, request, state, gpu_fit)` and `key(shape)` are described above; `fields` are read beyond CPU and
    memory. For `allocatable` these are the resources with measured use; `used` itself is not listed.
    """

    given: Callable[[Any, Request, ClusterState, ActivePlugin | None], Given]
    fields: tuple[str, ...] = ()
    key: Callable[[Shape], Hashable] = _same_for_all


def _least_allocated(plugin: Any, request: Request, state: ClusterState, gpu_fit: ActivePlugin | None) -> Given:
    params = plugin.params
    if plugin.pre_score(request, state) is not None:
        return SKIP
    return (LEAST_ALLOCATED, (params.cpu, params.memory)) if params.use == "requested" else None


def _asks_cpu_or_memory(shape: Shape) -> bool:
    return any(amount and name in ("cpu", "memory") for name, amount in shape.requests)


def _balanced_allocation(plugin: Any, request: Request, state: ClusterState, gpu_fit: ActivePlugin | None) -> Given:
    if plugin.params.use != "requested" or plugin.params.form != "std":
        return None
    return (BALANCED_ALLOCATION, ()) if _asks_cpu_or_memory(request.shape) else SKIP


def _whole_request(shape: Shape) -> Hashable:
    return shape.requests, shape.gpu


def _tightest_fit(plugin: Any, request: Request, state: ClusterState, gpu_fit: ActivePlugin | None) -> Given:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    asked, scale, with_cards = request.memo["tightest-fit"]
    return TIGHTEST_FIT, (*asked.tolist(), *scale.tolist(), float(with_cards))


def _nash_gain(plugin: Any, request: Request, state: ClusterState, gpu_fit: ActivePlugin | None) -> Given:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    if plugin.params.dispersion != "variance":
        return None
    rows, all_there = state.once("formulas.nash-gain", lambda: _four_resources(state))
    return NASH_GAIN, (*rows, 50.0 / plugin.params.full, all_there)


def _four_resources(state: ClusterState) -> tuple[list[int], float]:
    """Return the rows of the four resources in `allocatable`, -1 for none, and 1 if every node has all four."""
    rows = [state.resources.index.get(name, UNKNOWN) for name in USAGE_RESOURCES]
    return rows, float(UNKNOWN not in rows and bool((state.columns.field("allocatable")[rows] > 0).all()))


def _gpu_demand(shape: Shape) -> Hashable:
    return shape.gpu


def _gpu_headroom(plugin: Any, request: Request, state: ClusterState, gpu_fit: ActivePlugin | None) -> Given:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    needs, _, taken = request.memo["gpu-headroom"]
    if any(need.deviation for need in needs):
        return None  # logarithms differ in their last digit between libraries
    means = {need.row: need.mean for need in needs}
    cpu, memory = means.get(0, 0.0), means.get(1, 0.0)
    tightness = plugin.params.tightness / cpu if cpu else 0.0
    return GPU_HEADROOM, (cpu, memory, tightness, taken, POINTS_PER_GPU)


def _for_cards(shape: Shape) -> Hashable:
    return (shape.requests, shape.gpu) if shape.gpu is not None else None


def _ihep(plugin: Any, request: Request, state: ClusterState, gpu_fit: ActivePlugin | None) -> Given:
    if plugin.pre_score(request, state) is not None:
        return SKIP
    params, gpu = plugin.params, request.shape.gpu
    if gpu is None or not is_gpu_pod(request.shape):
        weights = params.cpu_weight + params.memory_weight
        return IHEP_CPU, (request.memo["ihep"], params.cpu_weight, params.memory_weight, weights or 1.0)
    if params.similarity != "ratio" or gpu_fit is None or gpu_fit.instance.params.check != "all":
        return None  # the loop reads GPUs like gpu-fit
    asked = request.shape.request("cpu") / 1000, request.shape.request("memory") / 2**30
    return IHEP_GPU, (gpu.count, gpu.memory_mib, gpu.cores, *asked, float(params.combine == "product"))


TERMS: dict[str, FormulaInputs] = {
    "least-allocated": FormulaInputs(_least_allocated, ("nonzero",), is_gpu_pod),
    "balanced-allocation": FormulaInputs(_balanced_allocation, key=_asks_cpu_or_memory),
    "tightest-fit": FormulaInputs(_tightest_fit, ("card_milli_free",), _whole_request),
    "nash-gain": FormulaInputs(_nash_gain, ("allocatable", "used"), is_gpu_pod),
    "gpu-headroom": FormulaInputs(_gpu_headroom, ("card_milli_free",), _gpu_demand),
    "ihep": FormulaInputs(_ihep, ("nonzero", "cards_present"), _for_cards),
}


def card_worth(plugins: Iterable[ActivePlugin], state: ClusterState) -> Floats:
    """Return (G, N) the value of each GPU to the plugin that scores single GPUs, else (0, 0)."""
    for plugin in plugins:
        if plugin.name == "ihep":
            worth: Floats = np.ascontiguousarray(plugin.instance.quality(state))
            return worth
    return np.zeros((0, 0))
