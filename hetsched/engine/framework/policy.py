"""Compiled policy: plugins resolved, parameters checked, extension points filled in order.

The order of `PolicySpec.plugins` is the order of filters; a plugin that is not listed is disabled. At most one plugin
sorts the queue; the default order is priority, then submission. Under a policy with Permit plugins, the members of a
gang are scheduled directly after one another, so that no other pod is rejected because of their reservations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from hetsched.contracts.errors import InputError, without_path
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.params import check_params
from hetsched.contracts.remedies import ADD_PLUGIN, allowed_range, known_names
from hetsched.contracts.type_remedies import field_of, remedy_for

from .compiled_terms import BuiltinFilter, FiltersCards, Formula
from .extension_points import Reads, Scope
from .gangs import gang_key, together
from .plugin_interfaces import (
    ArrangesQueue,
    CountsZoneMemory,
    DescribesEviction,
    DescribesWait,
    FindsEmulation,
    HandlesPods,
    HandlesShapes,
    HasConcerns,
    HasStaticKey,
    KeepsGangsTogether,
    MeasuresUse,
    OnMissed,
    OnWithdrawn,
    OrdersByPriority,
    PreparesGangs,
    RelaxesRequests,
    WantsMix,
)
from .registry import PluginInfo, Registry
from .request import Request, shape_of

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

MAX_WEIGHT = 1000.0


class ActivePlugin:
    """Plugin of a policy: its declaration, an instance with checked parameters, and its weight.

    Optional hooks (`plugin_interfaces`) are looked up once, here: `static_key` defaults to the shape; the other hooks
    are None if the plugin does not define them. `selective` is true if the plugin declares which pods or shapes it
    handles.
    """

    __slots__ = (
        "_concerns", "emulated_on", "handled_pods", "handles", "info", "instance", "missed", "name", "prepare",
        "relaxations", "selective", "static", "static_key", "waits", "waits_to_evict", "weight", "withdrawn",
    )  # fmt: skip

    def __init__(self, info: PluginInfo, instance: Any, weight: float) -> None:
        self.info = info
        self.name = info.name
        self.instance = instance
        self.weight = weight
        self.static = info.reads is Reads.STATIC and info.scope is Scope.ROW
        kind = type(instance)  # issubclass uses a cache; isinstance inspects the protocol again on each call
        self.static_key: Callable[[Request], Hashable] = (
            instance.static_key if issubclass(kind, HasStaticKey) else shape_of
        )
        self._concerns = instance.concerns if issubclass(kind, HasConcerns) else None
        self.handles = instance.handles if issubclass(kind, HandlesShapes) else None
        concerned = None if self._concerns is None else self._concerned
        self.handled_pods = instance.handled_pods if issubclass(kind, HandlesPods) else concerned
        self.waits = instance.waits if issubclass(kind, DescribesWait) else None
        self.waits_to_evict = instance.waits_to_evict if issubclass(kind, DescribesEviction) else None
        self.relaxations = instance.relaxations if issubclass(kind, RelaxesRequests) else None
        self.emulated_on = instance.emulated_on if issubclass(kind, FindsEmulation) else None
        self.prepare = instance.prepare if issubclass(kind, PreparesGangs) else None
        self.missed = instance.missed if issubclass(kind, OnMissed) else None
        self.withdrawn = instance.withdrawn if issubclass(kind, OnWithdrawn) else None
        self.selective = self.handles is not None or self.handled_pods is not None

    def serves(self, point: str) -> bool:
        return point in self.info.points

    def _concerned(self, state: ClusterState) -> Callable[[PodSpec], bool] | None:
        return self._concerns

    def concerns(self, pod: PodSpec) -> bool:
        """Return whether the plugin handles this pod; a plugin without `concerns` handles every pod."""
        return self._concerns is None or bool(self._concerns(pod))


class Policy:
    """Compiled policy; immutable once built.

    `formulas` are the formulas of all plugins of the registry, including plugins that the policy does not list.
    """

    def __init__(self, spec: PolicySpec, plugins: list[ActivePlugin], formulas: tuple[Formula, ...]) -> None:
        self.spec = spec
        self.formulas = formulas
        self.plugins = tuple(plugins)
        self.filters = self._serving("filter")
        self.pre_filters = self._serving("pre-filter")
        self.gates = tuple(plugin for plugin in self.plugins if plugin in self.filters + self.pre_filters)
        builtin = {plugin.info.compiled_filter: plugin for plugin in self.gates}
        self.counts_resources = BuiltinFilter.RESOURCES in builtin
        cards = builtin.get(BuiltinFilter.CARDS)
        self.card_filter: FiltersCards | None = None if cards is None else cards.instance
        self.post_filters = self._serving("post-filter")
        self.scores = tuple(plugin for plugin in self._serving("score") if plugin.weight > 0)
        self.reserves = self._serving("reserve")
        self.permits = self._serving("permit")
        self.preparing = tuple(plugin for plugin in self.plugins if plugin.prepare is not None)
        self.pre_binds = self._serving("pre-bind")
        self.binds = self._serving("bind")
        self.post_binds = self._serving("post-bind")
        sorters = self._serving("queue-sort")
        for template, group in (
            ("a policy can have only one plugin that sorts the queue, not both {names}", sorters),
            ("a policy can have only one plugin that binds pods, not both {names}", self.binds),
        ):
            if len(group) > 1:
                names = joined(", ", [plugin.name for plugin in group])
                message = Message(template, names=names)
                raise InputError("PolicyPointDoubled", message, place="spec.plugins", hint="Remove one of them")
        self._sorter = sorters[0].instance if sorters else None
        instances = [plugin.instance for plugin in self.plugins]
        self.wants_mix = any(isinstance(each, WantsMix) and each.wants_mix for each in instances)
        # Whether measured node usage, where available, affects decisions.
        self.measures = any(isinstance(each, MeasuresUse) and each.measures for each in instances)
        self.counts_zone_memory = any(
            isinstance(each, CountsZoneMemory) and each.counts_zone_memory for each in instances
        )
        self._arrange = self._sorter.arrange if isinstance(self._sorter, ArrangesQueue) else None
        adjacent = isinstance(self._sorter, KeepsGangsTogether) and self._sorter.together
        self._together = bool(self.permits) or adjacent
        self.sorts_by_priority = self._sorter is None or (
            isinstance(self._sorter, OrdersByPriority) and self._sorter.by_priority
        )

    def _serving(self, point: str) -> tuple[ActivePlugin, ...]:
        return tuple(plugin for plugin in self.plugins if plugin.serves(point))

    def sort_key(self, pod: PodSpec) -> tuple[Any, ...]:
        """Return the sort key of a pending pod; callers sort stably, so equal keys keep their submission order."""
        if self._sorter is None:
            return (-pod.priority,)
        key: tuple[Any, ...] = self._sorter.sort_key(pod)
        return key

    @property
    def follows_placements(self) -> bool:
        """Return whether the queue order depends on earlier placements, so that pods must be drawn one by one."""
        return self._arrange is not None

    def queue(
        self, pods: Sequence[PodSpec], state: ClusterState, behind: Mapping[str, float] | None = None
    ) -> Iterator[PodSpec]:
        """Register pods, given in submission order, and yield them in the order in which to schedule them on `state`.

        Pods are registered in queue order, so that trials of a gang place its members in the order of the decisions. If
        the order follows placements, the members of a gang keep their submission order, and the caller must decide each
        pod before it draws the next. `behind` is described in `by_decision_time`.
        """
        groups = by_decision_time(pods, behind or {})
        order = chain.from_iterable(
            self._ordered(group, state, lambda pod: pod.key in state.placed_pods) for group in groups
        )
        if self.follows_placements:
            state.gangs.register_queue(pods)
            return order
        queue = list(order)
        state.gangs.register_queue(queue)
        return iter(queue)

    def forecast(
        self, pods: Sequence[PodSpec], state: ClusterState, behind: Mapping[str, float] | None = None
    ) -> list[PodSpec]:
        """Return the order in which `queue` would yield these pods if each of them were placed."""
        groups = by_decision_time(pods, behind or {})
        return [pod for group in groups for pod in self._ordered(group, state, lambda pod: True)]

    def _ordered(
        self, pods: Sequence[PodSpec], state: ClusterState, placed: Callable[[PodSpec], bool]
    ) -> Iterator[PodSpec]:
        if self._arrange is not None:
            arranged: Iterator[PodSpec] = self._arrange(pods, state, placed)
            return arranged
        ordered = sorted(pods, key=self.sort_key)
        return iter(together(ordered) if self._together else ordered)

    def permits_for(self, pod: PodSpec) -> tuple[ActivePlugin, ...]:
        """Return the Permit plugins that handle this pod."""
        return tuple(plugin for plugin in self.permits if plugin.concerns(pod))


def by_decision_time(pods: Sequence[PodSpec], behind: Mapping[str, float]) -> list[Sequence[PodSpec]]:
    """Divide the pods into groups, which are scheduled one after another.

    `behind` maps namespaces that used more than their share of decision time to the seconds used. At equal priority,
    their pods follow the pods of all other namespaces, the namespace with the least time first. A gang has the priority
    of its first member and is not divided; within a group the caller's order is kept.
    """
    if not behind:
        return [pods]
    groups: dict[tuple[int, float], list[PodSpec]] = {}
    leads: dict[str, tuple[int, float]] = {}
    for pod in sorted(pods, key=lambda pod: -pod.priority):
        place = -pod.priority, behind.get(pod.namespace, 0.0)
        gang = gang_key(pod)
        groups.setdefault(place if gang is None else leads.setdefault(gang, place), []).append(pod)
    return [groups[place] for place in sorted(groups)]


def compile_policy(spec: PolicySpec, registry: Registry, *, implied: bool = False) -> Policy:
    """Check a policy against the known plugins and compile it.

    `implied` is set for a live cluster: the plugins that declare themselves implied are added at the end if they are
    not listed.

    Raises: InputError `PolicyEmpty`, `PolicyPluginUnknown`, `PolicyPluginRepeated`, `PolicyWeightInvalid`,
    `PolicyParamInvalid` or `PolicyPointDoubled`.
    """
    if not spec.plugins:
        message = Message("policy {name} lists no plugins", name=spec.name)
        raise InputError("PolicyEmpty", message, place="spec.plugins", hint=ADD_PLUGIN)
    names: set[str] = set()
    active: list[ActivePlugin] = []
    for position, use in enumerate(spec.plugins):
        place = f"spec.plugins[{position}]"
        if use.name not in registry:
            raise InputError(
                "PolicyPluginUnknown",
                Message("there is no plugin {name}", name=repr(use.name)),
                place=place,
                hint=known_names(use.name, [info.name for info in registry]),
            )
        if use.name in names:
            message = Message("plugin {name} is listed twice", name=use.name)
            raise InputError("PolicyPluginRepeated", message, place=place, hint="Remove one of the two entries")
        names.add(use.name)
        active.append(_activate(use, registry[use.name], place))
    unlisted = [info for info in registry if implied and info.implied and info.name not in names]
    active += [_activate(PluginUse(info.name), info, "") for info in unlisted]
    peers = {plugin.name: plugin.instance for plugin in active}
    for plugin in active:
        plugin.instance.peers = peers
    return Policy(spec, active, registry.formulas)


def _activate(use: PluginUse, info: PluginInfo, place: str) -> ActivePlugin:
    if not math.isfinite(use.weight) or not 0 <= use.weight <= MAX_WEIGHT:
        raise InputError(
            "PolicyWeightInvalid",
            Message(
                "{name}: weight {value} is not between 0 and {most}",
                name=use.name,
                value=use.weight,
                most=f"{MAX_WEIGHT:g}",
            ),
            place=place,
            hint=allowed_range(0, MAX_WEIGHT),
        )
    try:
        params = check_params(info.params, dict(use.params), plugin=use.name)
    except InputError as error:
        raise error.at(f"{place}.") from None
    return ActivePlugin(info, info.build(params), float(use.weight))


def policy_from_plain(values: Mapping[str, Any], *, name: str) -> PolicySpec:
    """Convert the `spec` of a SchedulingPolicy object to a PolicySpec.

    Raises: InputError `PolicyMalformed`, with the path of the invalid field.
    """
    try:
        return msgspec.convert({**values, "name": name}, PolicySpec)
    except msgspec.ValidationError as error:
        message = Message("policy {name}: {detail}", name=name, detail=without_path(error)[0])
        hint = remedy_for(error, PolicySpec, values, added=("name",))
        raise InputError("PolicyMalformed", message, place=f"spec.{field_of(error)}", hint=hint) from None
