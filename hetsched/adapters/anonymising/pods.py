"""Anonymised pods.

Problems keep their code and their field. Secrets are omitted; containers, gates and images get pseudonyms.
"""

from __future__ import annotations

import re

from msgspec import UNSET
from msgspec.structs import replace

from hetsched.adapters.objects.demands import ARCH_BASE, CPU_POLICIES
from hetsched.adapters.objects.fields import is_dns_label
from hetsched.contracts.errors import Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import (
    Allocation,
    CardGrant,
    ClaimedDevices,
    DeviceGrant,
    DeviceMapping,
    ExtendedClaim,
    IsaGrant,
    VolumeGrant,
    ZoneGrant,
)
from hetsched.contracts.objects.cluster import PodUsage
from hetsched.contracts.objects.node_features import REQUIRED_BY
from hetsched.contracts.objects.node_images import image_name
from hetsched.contracts.objects.workload import (
    SCHEDULER_NAME,
    ClaimUse,
    ContainerDemand,
    DeviceUse,
    GangMember,
    GangTopology,
    GpuDemand,
    HostPort,
    ImageFacts,
    IsaDemand,
    NumaDemand,
    PodSpec,
    PodTerm,
    PreferredNodeTerm,
    Shape,
    SpreadConstraint,
    is_ours,
)
from hetsched.isa.platforms import normalise

from ..objects import keys
from . import well_known
from .names import WITHHELD, NameAnonymizer, known_isa, moment, one_of, renamed
from .realms import (
    ADDRESS,
    CARD,
    CLAIM,
    CONTAINER,
    DEVICE_CLAIM,
    DEVICE_CLASS,
    GANG,
    GATE,
    IMAGE,
    POD,
    REQUEST,
    SCHEDULER,
    VOLUME,
)

_FIELD = re.compile(r"(spec|metadata)(\.[A-Za-z]+|\[[0-9]+\])*")
_VARIANT = re.compile(r"(v?[0-9.]{1,4}|rv[ab0-9u]{1,10})?", re.ASCII)
_STAYS = ("", "annotation", "local-volume", "hold")


class PodAnonymizer:
    """Anonymizer of pods; pods that share a shape share the renamed copy of the shape."""

    def __init__(self, names: NameAnonymizer) -> None:
        self._names = names
        self._shapes: dict[int, Shape] = {}

    def pod(self, pod: PodSpec) -> PodSpec:
        return PodSpec(
            namespace=self._names.namespace(pod.namespace),
            name=self._names.of(POD, pod.name),
            shape=self._shape(pod.shape),
            uid=self._names.uid(pod.uid),
            labels=self._names.labels(pod.labels),
            priority=pod.priority,
            qos=pod.qos,
            created_at=moment(pod.created_at),
            scheduler_name=self._scheduler(pod.scheduler_name),
            policy=pod.policy,
            policy_rule=pod.policy_rule,
            controller=self._names.controller(pod.controller),
            controller_uid=self._names.uid(pod.controller_uid),
            gang=None if pod.gang is None else self._gang(pod.gang),
            gates=renamed(lambda gate: self._names.of(GATE, gate), pod.gates),
            preemptible=pod.preemptible,
            stays=pod.stays if pod.stays in _STAYS else "annotation",
            preempts=pod.preempts,
            node_name=self._names.node(pod.node_name),
            allocation=None if pod.allocation is None else self._allocation(pod.allocation),
            container_names=renamed(lambda name: self._names.of(CONTAINER, name), pod.container_names),
            images=renamed(self._image, pod.images),
            image_facts=renamed(self._image_facts, pod.image_facts),
            problems=renamed(self._problem, pod.problems),
            grace_seconds=pod.grace_seconds,
            terminating=pod.terminating,
            extended_claim=self._names.of(DEVICE_CLAIM, pod.extended_claim),
        )

    def _scheduler(self, name: str) -> str:
        """Rename a scheduler unless it is one of hetsched's own or the default scheduler."""
        policy = name.removeprefix(f"{SCHEDULER_NAME}-")
        if is_ours(name) and name != SCHEDULER_NAME and not is_dns_label(policy):
            return f"{SCHEDULER_NAME}-"
        return name if is_ours(name) or name == "default-scheduler" else self._names.of(SCHEDULER, name)

    def _gang(self, gang: GangMember) -> GangMember:
        return GangMember(
            name=self._names.of(GANG, gang.name),
            min_available=gang.min_available,
            timeout_seconds=gang.timeout_seconds,
            min_resources=self._names.amounts(gang.min_resources),
            min_field=gang.min_field,
            topology=None if gang.topology is None else self._gang_topology(gang.topology),
            disruption_mode=gang.disruption_mode,
        )

    def _gang_topology(self, topology: GangTopology) -> GangTopology:
        return GangTopology(renamed(self._names.key, topology.preferred), renamed(self._names.key, topology.required))

    def _isa_demand(self, demand: IsaDemand) -> IsaDemand:
        """Copy an ISA demand without instruction sets that hetsched cannot parse, and rename its images."""
        native, emulated, cross, qemu = (
            known_isa(text) or "" for text in (demand.native, demand.emulated, demand.cross, demand.qemu)
        )
        images = demand.images
        if images is not None:
            named = ((one_of(arch, ARCH_BASE) or "", self._image(image)) for arch, image in images.variants_only)
            images = replace(images, variants_only=tuple(named))
        return IsaDemand(native, emulated, cross, qemu, demand.source, images)

    def _image(self, image: str) -> str:
        return self._names.of(IMAGE, image_name(image))

    def _image_facts(self, facts: ImageFacts) -> ImageFacts:
        unknown = Message(WITHHELD if facts.unknown else "")
        return ImageFacts(self._image(facts.image), renamed(self._platform, facts.platforms), unknown)

    def _platform(self, platform: str) -> str:
        """Rename the unknown parts of a platform such as `linux/arm64/v8`."""
        system, arch, variant = normalise(platform)
        if not _VARIANT.fullmatch(variant):
            variant = WITHHELD
        known = (self._names.value("kubernetes.io/os", system), self._names.value(keys.KUBERNETES_ARCH, arch), variant)
        return "/".join(filter(None, known))

    def _problem(self, problem: Problem) -> Problem:
        field = problem.field
        if field.startswith("PodGroup "):
            name, _, inner = field.removeprefix("PodGroup ").partition(": ")
            field = f"PodGroup {self._names.of(GANG, name)}: {inner if _FIELD.fullmatch(inner) else WITHHELD}"
        elif not (well_known.is_known_key(field) or well_known.is_known_resource(field) or _FIELD.fullmatch(field)):
            field = WITHHELD
        return Problem(problem.code, field, Message(WITHHELD))

    def _shape(self, shape: Shape) -> Shape:
        """Rename a shape, or return its copy if the shape was renamed before."""
        known = self._shapes.get(id(shape))
        if known is None:
            known = self._shapes[id(shape)] = self._new_shape(shape)
        return known

    def _new_shape(self, shape: Shape) -> Shape:
        return Shape(
            requests=self._names.amounts(shape.requests),
            nonzero_cpu_millis=shape.nonzero_cpu_millis,
            nonzero_memory_bytes=shape.nonzero_memory_bytes,
            node_selector=self._names.pairs(shape.node_selector),
            node_terms=self._names.node_terms(shape.node_terms),
            preferred_nodes=tuple(
                PreferredNodeTerm(term.weight, self._names.node_term(term.term)) for term in shape.preferred_nodes
            ),
            tolerations=renamed(self._names.toleration, shape.tolerations),
            affinity=renamed(self._pod_term, shape.affinity),
            anti_affinity=renamed(self._pod_term, shape.anti_affinity),
            preferred_affinity=renamed(self._pod_term, shape.preferred_affinity),
            spread=renamed(self._spread, shape.spread),
            host_ports=renamed(self._host_port, shape.host_ports),
            claims=renamed(self._claim_use, shape.claims),
            devices=renamed(self._device_use, shape.devices),
            extended=tuple(replace(each, resource=self._names.resource(each.resource)) for each in shape.extended),
            gpu=None if shape.gpu is None else self._gpu(shape.gpu),
            isa=None if shape.isa is None else self._isa_demand(shape.isa),
            numa=None if shape.numa is None else NumaDemand(shape.numa.aware, shape.numa.cpu_policy),
            containers=renamed(self._container, shape.containers),
            guaranteed=shape.guaranteed,
            expected_usage=self._names.amounts(shape.expected_usage),
            load_profile=shape.load_profile,
            expected_watts=shape.expected_watts,
            node_features=tuple(filter(REQUIRED_BY.__contains__, shape.node_features)),
            images=tuple(sorted(image_name(self._image(name)) for name in shape.images)),
            required_node=self._names.node(shape.required_node),
        )

    def _host_port(self, port: HostPort) -> HostPort:
        known = port.ip in well_known.ADDRESSES
        return HostPort(port.port, port.protocol, port.ip if known else self._names.of(ADDRESS, port.ip))

    def _gpu(self, gpu: GpuDemand) -> GpuDemand:
        return GpuDemand(
            count=gpu.count,
            milli=gpu.milli,
            memory_mib=gpu.memory_mib,
            cores=gpu.cores,
            models=gpu.models,
            exact_models=gpu.exact_models,
            vendor=self._names.vendor(gpu.vendor),
        )

    def _claim_use(self, use: ClaimUse) -> ClaimUse:
        return ClaimUse(
            self._names.of(CLAIM, use.name), None if use.template is None else self._names.asks(use.template)
        )

    def _device_use(self, use: DeviceUse) -> DeviceUse:
        return DeviceUse(self._names.of(REQUEST, use.name), self._names.of(DEVICE_CLAIM, use.claim))

    def _pod_term(self, term: PodTerm) -> PodTerm:
        return PodTerm(
            topology_key=self._names.key(term.topology_key),
            selector=self._names.selector(term.selector),
            namespaces=renamed(self._names.namespace, term.namespaces),
            namespace_selector=self._names.selector(term.namespace_selector),
            weight=term.weight,
        )

    def _spread(self, spread: SpreadConstraint) -> SpreadConstraint:
        return SpreadConstraint(
            topology_key=self._names.key(spread.topology_key),
            max_skew=spread.max_skew,
            hard=spread.hard,
            selector=self._names.selector(spread.selector),
            min_domains=spread.min_domains,
            honor_node_affinity=spread.honor_node_affinity,
            honor_taints=spread.honor_taints,
        )

    def _allocation(self, allocation: Allocation) -> Allocation:
        isa = allocation.isa
        return Allocation(
            gpus=tuple(
                CardGrant(c.index, c.milli, c.memory_mib, None if c.uuid is None else self._names.of(CARD, c.uuid))
                for c in allocation.gpus
            ),
            zones=renamed(self._zone_grant, allocation.zones),
            isa=None
            if isa is None
            else IsaGrant(isa.mode, known_isa(isa.required), known_isa(isa.offered), isa.slowdown),
            cpu_policy=one_of(allocation.cpu_policy, (*CPU_POLICIES, "static")),
            predicted=renamed(self._zone_grant, allocation.predicted),
            volumes=tuple(
                VolumeGrant(self._names.of(CLAIM, grant.claim), self._names.of(VOLUME, grant.volume))
                for grant in allocation.volumes
            ),
            devices=tuple(
                DeviceGrant(
                    claim=self._names.of(DEVICE_CLAIM, grant.claim),
                    uid=self._names.uid(grant.uid),
                    request=self._names.request_name(grant.request),
                    device=self._names.device_id(grant.device),
                    node_terms=self._names.node_terms(grant.node_terms),
                    admin=grant.admin,
                    consumed=self._names.capacity(grant.consumed),
                    zone=None if grant.zone is None else self._names.zone(grant.zone),
                    binding=self._names.binding_conditions(grant.binding),
                )
                for grant in allocation.devices
            ),
            memory=tuple(self._names.memory(one) for one in allocation.memory) if allocation.memory else UNSET,
            extended=self._extended_claim(allocation.extended) if allocation.extended else UNSET,
        )

    def _extended_claim(self, claim: ExtendedClaim) -> ExtendedClaim:
        request = self._names.request_name
        return ExtendedClaim(
            name=self._names.of(DEVICE_CLAIM, claim.name),
            requests=tuple(
                ClaimedDevices(request(one.name), self._names.of(DEVICE_CLASS, one.device_class), one.count)
                for one in claim.requests
            ),
            mappings=tuple(
                DeviceMapping(
                    self._names.of(CONTAINER, one.container), self._names.resource(one.resource), request(one.request)
                )
                for one in claim.mappings
            ),
        )

    def _zone_grant(self, grant: ZoneGrant) -> ZoneGrant:
        devices = self._names.resources(grant.devices) if grant.devices else UNSET
        return ZoneGrant(self._names.zone(grant.name), grant.cpus, grant.cpu_millis, grant.memory_mib, devices)

    def _container(self, container: ContainerDemand) -> ContainerDemand:
        return replace(
            container,
            devices=self._names.amounts(container.devices),
            memory=self._names.amounts(container.memory),
        )

    def usage(self, usage: PodUsage) -> PodUsage:
        return PodUsage(
            namespace=self._names.namespace(usage.namespace),
            name=self._names.of(POD, usage.name),
            controller=self._names.controller(usage.controller),
            amounts=self._names.resources(usage.amounts),
            observed_at=moment(usage.observed_at),
        )
