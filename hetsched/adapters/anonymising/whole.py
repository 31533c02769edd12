"""Anonymised cluster content that can be shared and leads to the same decisions.

A third party that analyses a decision needs the cluster, but must not learn which users run which workloads where.
Everything is withheld by default. The content is rebuilt field by field: amounts, times, flags and names in
`well_known` are copied, every other name gets a pseudonym of its realm, and all other text is omitted or replaced by
`withheld`. A field that this module does not name is omitted. Equal names get equal pseudonyms (selectors, owners,
topology, device allocations), and names keep their order, which breaks ties. Integers that are compared by size are
kept. Device expressions are replaced by attributes that contain the results of the expressions. Policy names and GPU
models are kept.
Invariants: the anonymised content, exported and read again, leads to the same decisions for every pod and node, except
for policies with random ties, which are drawn with the pod's name as seed. No name can be derived from its pseudonym.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetsched.adapters.objects.fields import is_dns_label
from hetsched.contracts.objects.cluster import (
    ClusterContent,
    DisruptionBudget,
    ElasticQuota,
    PriorityClass,
    RuntimeClass,
)
from hetsched.contracts.objects.node_images import image_key, image_name
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.storage import PersistentVolume, Storage, StorageClass, VolumeClaim
from hetsched.contracts.objects.workload import PodGroup

from . import well_known
from .devices import DeviceNames
from .names import WITHHELD, NameAnonymizer, one_of, renamed
from .nodes import NodeAnonymizer
from .pods import PodAnonymizer
from .pseudonyms import Pseudonyms
from .realms import BUDGET, CLAIM, CLASS, GANG, HANDLE, IMAGE, PRIORITY, QUOTA, RUNTIME, TOPOLOGY, VOLUME


class VolumeAnonymizer:
    """Anonymizer of volumes, volume claims, claim templates and storage classes."""

    def __init__(self, names: NameAnonymizer) -> None:
        self._names = names

    def storage(self, storage: Storage) -> Storage:
        return Storage(
            volumes={self._names.of(VOLUME, name): self._volume(found) for name, found in storage.volumes.items()},
            claims={self._names.key_of(CLAIM, key): self._claim(found) for key, found in storage.claims.items()},
            classes={
                self._names.of(CLASS, name): self._storage_class(found) for name, found in storage.classes.items()
            },
        )

    def _volume(self, volume: PersistentVolume) -> PersistentVolume:
        return PersistentVolume(
            name=self._names.of(VOLUME, volume.name),
            capacity_bytes=volume.capacity_bytes,
            modes=volume.modes,
            storage_class=self._names.of(CLASS, volume.storage_class),
            block=volume.block,
            labels=self._names.labels(volume.labels),
            terms=self._names.node_terms(volume.terms),
            zones=renamed(self._names.expression, volume.zones),
            claim=self._names.key_of(CLAIM, volume.claim),
            claim_uid=self._names.uid(volume.claim_uid),
            gone=volume.gone,
            source=one_of(volume.source, ("", *well_known.VOLUME_SOURCES), other="csi") or "",
            driver=self._names.driver(volume.driver),
            handle=self._names.of(HANDLE, volume.handle),
        )

    def _claim(self, claim: VolumeClaim) -> VolumeClaim:
        return VolumeClaim(
            namespace=self._names.namespace(claim.namespace),
            name=self._names.of(CLAIM, claim.name),
            asks=self._names.asks(claim.asks),
            uid=self._names.uid(claim.uid),
            volume=self._names.of(VOLUME, claim.volume),
            wanted=self._names.of(VOLUME, claim.wanted),
            selected_node=self._names.node(claim.selected_node),
            lost=claim.lost,
            deleting=claim.deleting,
        )

    def _storage_class(self, found: StorageClass) -> StorageClass:
        return StorageClass(
            provisioner=self._names.driver(found.provisioner),
            waits=found.waits,
            default=found.default,
            topologies=renamed(self._names.node_term, found.topologies),
        )


_UNSUPPORTED_OF_GROUPS = ("spec.schedulingConstraints", "spec.resourceClaims")


def anonymised(content: ClusterContent) -> ClusterContent:
    """Return content that leads to the same decisions, with a pseudonym in place of every identifying name."""
    pseudonyms = Pseudonyms()
    names = NameAnonymizer(pseudonyms)
    _Renaming(names).content(content)
    pseudonyms.settle()
    return _Renaming(NameAnonymizer(pseudonyms, frozenset(names.sized))).content(content)


class _Renaming:
    """One pass over cluster content; the first pass only collects the names."""

    def __init__(self, names: NameAnonymizer) -> None:
        self._names = names
        self._pods = PodAnonymizer(names)

    def content(self, content: ClusterContent) -> ClusterContent:
        images = {name for pod in (*content.running, *content.pending) for name in pod.shape.images}
        pseudonyms = {image_key(name): image_key(image_name(self._names.of(IMAGE, name))) for name in sorted(images)}
        nodes = NodeAnonymizer(self._names, pseudonyms)
        return ClusterContent(
            nodes=renamed(nodes.node, content.nodes),
            running=renamed(self._pods.pod, content.running),
            pending=renamed(self._pods.pod, content.pending),
            policies=renamed(self._policy, content.policies),
            namespaces={
                self._names.namespace(name): self._names.labels(labels) for name, labels in content.namespaces.items()
            },
            namespace_policies={
                self._names.namespace(name): policy if is_dns_label(policy) else WITHHELD
                for name, policy in content.namespace_policies.items()
            },
            priority_classes={
                self._priority_class(name): PriorityClass(found.value, found.default, found.preempts)
                for name, found in content.priority_classes.items()
            },
            runtime_classes={
                self._names.of(RUNTIME, name): self._runtime_class(found)
                for name, found in content.runtime_classes.items()
            },
            pod_groups={self._names.key_of(GANG, key): self._group(found) for key, found in content.pod_groups.items()},
            topologies={
                self._names.of(TOPOLOGY, name): renamed(self._names.key, levels)
                for name, levels in content.topologies.items()
            },
            storage=VolumeAnonymizer(self._names).storage(content.storage),
            devices=DeviceNames(self._names).devices(content.devices),
            quotas=renamed(self._quota, content.quotas),
            budgets=renamed(self._budget, content.budgets),
            pod_usages=renamed(self._pods.usage, content.pod_usages),
        )

    def _priority_class(self, name: str) -> str:
        return name if name in well_known.PRIORITY_CLASSES else self._names.of(PRIORITY, name)

    def _runtime_class(self, found: RuntimeClass) -> RuntimeClass:
        return RuntimeClass(
            overhead=self._names.amounts(found.overhead),
            node_selector=self._names.pairs(found.node_selector),
            tolerations=renamed(self._names.toleration, found.tolerations),
        )

    def _group(self, group: PodGroup) -> PodGroup:
        return PodGroup(
            min_member=group.min_member,
            timeout_seconds=group.timeout_seconds,
            min_resources=self._names.amounts(group.min_resources),
            native=group.native,
            unsupported=one_of(group.unsupported, ("", *_UNSUPPORTED_OF_GROUPS), other=_UNSUPPORTED_OF_GROUPS[0]) or "",
            required_topology=self._names.key(group.required_topology) if group.required_topology else "",
            disruption_mode=group.disruption_mode,
        )

    def _quota(self, quota: ElasticQuota) -> ElasticQuota:
        return ElasticQuota(
            namespace=self._names.namespace(quota.namespace),
            name=self._names.of(QUOTA, quota.name),
            min=self._names.amounts(quota.min),
            max=self._names.amounts(quota.max),
        )

    def _budget(self, budget: DisruptionBudget) -> DisruptionBudget:
        return DisruptionBudget(
            namespace=self._names.namespace(budget.namespace),
            name=self._names.of(BUDGET, budget.name),
            selector=self._names.selector(budget.selector),
            desired_healthy=budget.desired_healthy,
        )

    def _policy(self, policy: PolicySpec) -> PolicySpec:
        return PolicySpec(
            name=policy.name, plugins=renamed(self._plugin, policy.plugins), ties=policy.ties, version=policy.version
        )

    def _plugin(self, use: PluginUse) -> PluginUse:
        return PluginUse(use.name, use.weight, self._params(use.name, use.params))

    def _params(self, plugin: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Rename names in parameters; omit unknown parameters unless they contain only numbers and built-in words."""
        team = str(params.get("team_label", ""))
        named: dict[tuple[str, str], Callable[[Any], Any]] = {
            ("binpack", "resources"): self._names.resources,
            ("fair-share", "team_label"): self._names.key,
            ("fair-share", "team_weights"): lambda due: {
                self._names.value(team, name): part for name, part in due.items()
            },
            ("fair-share", "namespace_weights"): lambda due: {
                self._names.namespace(name): part for name, part in due.items()
            },
        }
        found: dict[str, Any] = {}
        for name, value in params.items():
            if (plugin, name) in named:
                found[name] = named[plugin, name](value)
            elif _is_plain(value):
                found[name] = value
        return found


def _is_plain(value: Any) -> bool:
    """Return whether a parameter consists of numbers, booleans and words that built-in plugins define."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return value in well_known.PARAMETER_WORDS
    return value is None or isinstance(value, bool | int | float)
