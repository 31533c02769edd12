"""A policy made ready to run: plugins found, parameters checked, extension points filled in order.

Rule: the order of `PolicySpec.plugins` is the order of filters; a plugin that is not listed is off. Exactly one plugin
sorts the queue; a policy that names none gets priority, then submission order. Under a policy that can hold
placements, the members of a gang are tried one right after the other: nobody else is refused for what they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.params import check_params
from hetsched.contracts.policy import PluginUse, PolicySpec
from hetsched.contracts.workload import PodSpec

from .extension_points import Reads, Scope
from .gangs import together
from .registry import PluginInfo, Registry

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

MAX_WEIGHT = 1000.0
# What takes part in every decision for a cluster that runs pods, whatever its policies list.
IMPLIED = ("admission",)


class ActivePlugin:
    """One plugin of a policy: its declaration, an instance with checked parameters, and its weight."""

    __slots__ = ("info", "instance", "name", "static", "weight")

    def __init__(self, info: PluginInfo, instance: Any, weight: float) -> None:
        self.info = info
        self.name = info.name
        self.instance = instance
        self.weight = weight
        self.static = info.reads is Reads.STATIC and info.scope is Scope.ROW

    def serves(self, point: str) -> bool:
        return point in self.info.points

    def concerns(self, pod: PodSpec) -> bool:
        """Tell whether the plugin has a say about this pod; only those that declare it have none."""
        concerns = getattr(self.instance, "concerns", None)
        return concerns is None or bool(concerns(pod))


class Policy:
    """A compiled policy; immutable once built."""

    def __init__(self, spec: PolicySpec, plugins: list[ActivePlugin]) -> None:
        self.spec = spec
        self.plugins = tuple(plugins)
        self.filters = self._serving("filter")
        self.pre_filters = self._serving("pre-filter")
        self.gates = tuple(plugin for plugin in self.plugins if plugin in self.filters + self.pre_filters)
        self.post_filters = self._serving("post-filter")
        self.scores = tuple(plugin for plugin in self._serving("score") if plugin.weight > 0)
        self.reserves = self._serving("reserve")
        self.permits = self._serving("permit")
        self.pre_binds = self._serving("pre-bind")
        self.binds = self._serving("bind")
        self.post_binds = self._serving("post-bind")
        sorters = self._serving("queue-sort")
        for point, group in (("sort the queue", sorters), ("bind", self.binds)):
            if len(group) > 1:
                names = " and ".join(plugin.name for plugin in group)
                raise InputError("PolicyPointDoubled", f"{names} would both {point}", place="spec.plugins")
        self._sorter = sorters[0].instance if sorters else None
        self.wants_mix = any(getattr(plugin.instance, "wants_mix", False) for plugin in self.plugins)
        # Whether what is measured of nodes, where it is, decides.
        self.measures = any(getattr(plugin.instance, "measures", False) for plugin in self.plugins)
        self._arrange = getattr(self._sorter, "arrange", None)
        self._together = bool(self.permits) or getattr(self._sorter, "together", False)

    def _serving(self, point: str) -> tuple[ActivePlugin, ...]:
        return tuple(plugin for plugin in self.plugins if plugin.serves(point))

    def sort_key(self, pod: PodSpec) -> tuple[Any, ...]:
        """Order pods that wait; callers keep submission order among equals (sort is stable)."""
        if self._sorter is None:
            return (-pod.priority,)
        key: tuple[Any, ...] = self._sorter.sort_key(pod)
        return key

    @property
    def follows_placements(self) -> bool:
        """Tell whether the queue's order depends on what became of the pods before, so that it is drawn one by one."""
        return self._arrange is not None

    def queue(self, pods: Sequence[PodSpec], state: ClusterState) -> Iterator[PodSpec]:
        """Announce pods, given in submission order, and yield them in the order in which to try them on `state`.

        Where the order follows placements, decide for each pod before drawing the next.
        """
        state.gangs.announce(pods)
        return self._ordered(pods, state, lambda pod: pod.key in state.bookings)

    def forecast(self, pods: Sequence[PodSpec], state: ClusterState) -> list[PodSpec]:
        """Return the order in which `queue` would have these pods tried, were each of them placed."""
        return list(self._ordered(pods, state, lambda pod: True))

    def _ordered(
        self, pods: Sequence[PodSpec], state: ClusterState, placed: Callable[[PodSpec], bool]
    ) -> Iterator[PodSpec]:
        if self._arrange is not None:
            arranged: Iterator[PodSpec] = self._arrange(pods, state, placed)
            return arranged
        ordered = sorted(pods, key=self.sort_key)
        return iter(together(ordered) if self._together else ordered)

    def permits_for(self, pod: PodSpec) -> tuple[ActivePlugin, ...]:
        """Return the plugins that may hold a placement of this pod."""
        return tuple(plugin for plugin in self.permits if plugin.concerns(pod))


def compile_policy(spec: PolicySpec, registry: Registry, *, implied: Sequence[str] = ()) -> Policy:
    """Check a policy against the known plugins and make it ready; `implied` plugins come last, listed or not.

    Raises: InputError `PolicyEmpty`, `PolicyPluginUnknown`, `PolicyPluginRepeated`, `PolicyWeightInvalid`,
    `PolicyParamInvalid` or `PolicyPointDoubled`.
    """
    if not spec.plugins:
        raise InputError("PolicyEmpty", f"policy {spec.name} lists no plugin", place="spec.plugins")
    names: set[str] = set()
    active: list[ActivePlugin] = []
    for position, use in enumerate(spec.plugins):
        place = f"spec.plugins[{position}]"
        if use.name not in registry:
            known = ", ".join(info.name for info in registry)
            raise InputError(
                "PolicyPluginUnknown", f"there is no plugin {use.name!r}", place=place, hint=f"Known plugins: {known}"
            )
        if use.name in names:
            raise InputError("PolicyPluginRepeated", f"plugin {use.name} is listed twice", place=place)
        names.add(use.name)
        active.append(_activate(use, registry[use.name], place))
    active += [_activate(PluginUse(name), registry[name], "") for name in implied if name not in names]
    for plugin in active:
        plugin.instance.peers = frozenset(names)
    return Policy(spec, active)


def _activate(use: PluginUse, info: PluginInfo, place: str) -> ActivePlugin:
    if not math.isfinite(use.weight) or not 0 <= use.weight <= MAX_WEIGHT:
        raise InputError(
            "PolicyWeightInvalid", f"{use.name}: weight {use.weight} is not between 0 and {MAX_WEIGHT:g}", place=place
        )
    try:
        params = check_params(info.params, dict(use.params), plugin=use.name)
    except InputError as error:
        raise error.at(f"{place}.") from None
    return ActivePlugin(info, info.build(params), float(use.weight))


def policy_from_plain(values: Mapping[str, Any], *, name: str) -> PolicySpec:
    """Read the `spec` of a SchedulingPolicy object into a PolicySpec.

    Raises: InputError `PolicyMalformed`, with the path of the wrong field.
    """
    try:
        return msgspec.convert({**values, "name": name}, PolicySpec)
    except msgspec.ValidationError as error:
        raise InputError("PolicyMalformed", f"policy {name}: {error}", place="spec") from None
