"""Device allocation for the ResourceClaims of pods (DRA).

Two pods that are scheduled one after the other must not get the same device before the cluster records the first
allocation. A device is in use if it is allocated to a claim, by any scheduler, or promised to a placed pod. A claim has
one of these states:
    allocated   its pod must run on a node that can use its devices;
    promised    another placed pod has chosen the devices, but the cluster has not recorded them yet: other pods wait;
    open        devices are searched on each node (`devices.search`);
    refused     in all other cases; `resolve_claim` returns the reason.
If a selector cannot be evaluated for a device that passed the earlier selectors, the claim is refused.
Invariants: promises depend only on the placed pods; a cluster without claims has no overhead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b

import msgspec
import numpy as np

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import DevicePlace, DeviceWish, ResourceClaim
from hetsched.contracts.objects.devices import Devices as Known
from hetsched.contracts.objects.node_constraints import NodeTerm
from hetsched.contracts.objects.workload import DeviceUse, PodSpec
from hetsched.engine.framework.status import Refusal

from ..columns import Bools
from ..placed_pod import PlacedPod
from ..selectors import nodes_of_terms
from ..state_view import StateView
from .extended_resources import claim_name, served_resources
from .numa import numa_nodes
from .search import DeviceSearch, NodeDevices
from .usage import DeviceUsage
from .verdicts import DeviceVerdicts

MOST_USERS = 256  # the API's limit of pods that one claim may be reserved for


class DeviceState:
    """The devices of a cluster state: the inventory, and the devices promised to placed pods.

    `numa` contains the number of the NUMA node near each device, None if unknown; `places` the index of each device.
    """

    __slots__ = (
        "_by_node", "_by_terms", "_digest", "_found", "_on_any_node", "_usage", "_verdicts", "known", "numa", "places",
        "promised", "reserved_for",
    )  # fmt: skip

    def __init__(self, known: Known | None = None) -> None:
        self.known = known or Known()
        self.reserved_for: dict[str, dict[str, int]] = {}  # claim -> pod -> row
        self.promised: dict[str, list[DeviceGrant]] = {}  # claim -> devices that the cluster may not have recorded yet
        self._index()

    def _index(self) -> None:
        self._digest: bytes | None = None
        self.numa = numa_nodes(self.known.devices)
        self.places = {device.id: place for place, device in enumerate(self.known.devices)}
        self._by_node: dict[str, list[int]] = {}
        self._by_terms: dict[tuple[NodeTerm, ...], list[int]] = {}
        self._on_any_node: list[int] = []
        for place, device in enumerate(self.known.devices):
            if device.node:
                self._by_node.setdefault(device.node, []).append(place)
            elif device.node_terms is not None:
                self._by_terms.setdefault(device.node_terms, []).append(place)
            else:
                self._on_any_node.append(place)
        # device class and selectors -> result of `matching`
        self._found: dict[tuple[str, tuple[str, ...]], tuple[frozenset[int], frozenset[int], str]] = {}
        self._usage: DeviceUsage | None = None
        self._verdicts = DeviceVerdicts()

    def digest(self) -> bytes:
        """Return the digest of the devices, classes and claims."""
        if self._digest is None:
            self._digest = blake2b(encode(self.known, order="sorted"), digest_size=12).digest()
        return self._digest

    def add(self, more: Known) -> None:
        """Add the claims and classes of new pods, without replacing existing claims and classes."""
        known = self.known
        devices = known.devices or more.devices
        same = devices == more.devices
        self.known = Known(
            devices,
            {**more.classes, **known.classes},
            {**more.claims, **known.claims},
            {**(more.verdicts if same else {}), **known.verdicts},
            known.incomplete or more.incomplete,
            known.counters if known.devices else more.counters,
            {**more.extended, **known.extended},
            known.incomplete_places if known.incomplete else more.incomplete_places,
        )
        self._index()

    def copy(self) -> DeviceState:
        other = object.__new__(DeviceState)
        other.known, other._digest, other.numa, other.places = self.known, self._digest, self.numa, self.places
        other.promised = {claim: list(grants) for claim, grants in self.promised.items()}
        other.reserved_for = {claim: dict(pods) for claim, pods in self.reserved_for.items()}
        other._by_node, other._by_terms, other._on_any_node = self._by_node, self._by_terms, self._on_any_node
        other._found, other._usage, other._verdicts = self._found, None, DeviceVerdicts()
        return other

    def replace_claims(self, known: Known) -> bool:
        """Replace the claims by those of `known` if the devices are equal; return whether they are."""
        before = self.known
        if msgspec.structs.replace(known, claims=before.claims, verdicts=before.verdicts) != before:
            return False
        # Equal devices keep their identity, so that the next comparison is short.
        self.known = msgspec.structs.replace(before, claims=known.claims, verdicts=known.verdicts)
        self._digest = None
        if known.verdicts != before.verdicts:
            self._found, self._verdicts = {}, DeviceVerdicts()
        for key in known.claims.keys() | before.claims.keys():
            if known.claims.get(key) != before.claims.get(key):
                self._update_usage(key)
        return True

    def _update_usage(self, claim: str) -> None:
        if self._usage is not None:
            self._verdicts.drop(self._usage.update(claim, self.known.claims.get(claim), self.promised.get(claim, ())))

    # -- placed pods -----------------------------------------------------------------------------------------------

    def charge(self, placed: PlacedPod, sign: int) -> None:
        """Promise the granted devices to a placed pod (`sign` 1), or release them when it is removed (-1)."""
        for grant in placed.allocation.devices:
            key = f"{placed.pod.namespace}/{grant.claim}"
            pods = self.reserved_for.setdefault(key, {})
            promised = self.promised.setdefault(key, [])
            if sign > 0:
                pods[placed.pod.key] = placed.row
                promised.append(grant)
            else:
                pods.pop(placed.pod.key, None)
                promised.remove(grant)
            if not pods:
                self.reserved_for.pop(key)
            if not promised:
                self.promised.pop(key)
        for claim in dict.fromkeys(grant.claim for grant in placed.allocation.devices):
            self._update_usage(f"{placed.pod.namespace}/{claim}")

    # -- claims of pods --------------------------------------------------------------------------------------------

    def resolve_claim(self, pod: PodSpec, use: DeviceUse) -> ResourceClaim | Refusal:
        """Return the claim of `use` if it is allocated or open, or the reason why the pod cannot use it."""
        claim = self.known.claims.get(f"{pod.namespace}/{use.claim}") if use.claim else None
        if claim is None:
            message = (
                Message("claim {claim} does not exist yet", claim=use.claim)
                if use.claim
                else Message("the claim for {claim} does not exist yet", claim=use.name)
            )
            return _refused("ResourceClaimMissing", message, use.claim or use.name)
        if claim.deleting:
            return _refused(
                "ResourceClaimDeleting", Message("claim {claim} is being deleted", claim=claim.name), claim.name
            )
        if claim.unsupported:
            field = f"ResourceClaim {claim.name}: {claim.unsupported}"
            message = Message("{text} is not supported", text=field)
            return Refusal("FeatureNotSupported", message, field=field, verdict=Verdict.MISCONFIGURED)
        if claim.allocated is not None:
            if pod.uid not in claim.users and len(claim.users) >= MOST_USERS:
                return _refused(
                    "ResourceClaimFull",
                    Message(
                        "claim {claim} is already reserved for {n} pods, the maximum", claim=claim.name, n=MOST_USERS
                    ),
                    claim.name,
                )
            return claim
        if self.reserved_for.get(claim.key):
            return _refused(
                "ResourceClaimBusy",
                Message("claim {claim} is being allocated for another pod", claim=claim.name),
                claim.name,
            )
        return self.claim_problem(claim) or claim

    def claim_problem(self, claim: ResourceClaim) -> Refusal | None:
        """Return the refusal of a claim with a missing device class or a selector that cannot be evaluated, or None."""
        for request in claim.requests:
            for wish in request.wishes:
                if wish.device_class not in self.known.classes:
                    message = Message(
                        "claim {claim} requests device class {name}, which does not exist",
                        claim=claim.name,
                        name=wish.device_class,
                    )
                    return _refused("DeviceClassMissing", message, wish.device_class)
                _, unknown, reason = self.matching(wish)
                if unknown:
                    device_id = self.known.devices[min(unknown)].id
                    message = Message(
                        "claim {claim}: a selector of request {name} cannot be evaluated for device {device}: {text}",
                        claim=claim.name,
                        name=request.name,
                        device=str(device_id),
                        text=reason,
                    )
                    return _refused("DeviceSelectorUnknown", message, request.name)
        return None

    def matching(self, wish: DeviceWish) -> tuple[frozenset[int], frozenset[int], str]:
        """Return the indexes of the devices that match `wish`, and of those for which a selector cannot be evaluated.

        The third value is the reason why the first such selector cannot be evaluated, empty if all can be evaluated.
        """
        key = (wish.device_class, wish.selectors)
        found = self._found.get(key)
        if found is None:
            remaining, unknown, reason = frozenset(range(len(self.known.devices))), frozenset[int](), ""
            for selector in (*self.known.classes.get(wish.device_class, ()), *wish.selectors):
                verdict = self.known.verdicts.get(selector)
                if verdict is None:
                    unknown, reason = unknown | remaining, reason or "the selector has not been evaluated yet"
                    break
                unclear = remaining & frozenset(verdict.unknown)
                unknown, reason = unknown | unclear, reason or (verdict.reason if unclear else "")
                remaining &= frozenset(verdict.true)
            found = self._found[key] = remaining, unknown, reason
        return found

    def by_node(self, state: StateView, rows: Iterable[int] | None = None) -> dict[int, NodeDevices]:
        """Return the devices that each node can access, by row; without `rows` for all nodes."""
        selected = [(nodes_of_terms(state, terms), places) for terms, places in self._by_terms.items()]
        if rows is None:
            rows = (
                range(len(state.reports)) if self._on_any_node else self._rows(state, [nodes for nodes, _ in selected])
            )
        incomplete = state.once("incomplete pools", lambda: self._incomplete_on(state))
        found: dict[int, NodeDevices] = {}
        for row in rows:
            places = [*self._by_node.get(state.reports[row].name, ()), *self._on_any_node]
            for nodes, some in selected:
                if nodes[row]:
                    places += some
            if places:
                found[row] = NodeDevices(places, not incomplete[row])
        return found

    def _incomplete_on(self, state: StateView) -> Bools:
        """Return the nodes that can access slices of an incomplete pool, (N,)."""
        nodes: Bools = np.zeros(len(state.reports), np.bool_)
        for pool in self.known.incomplete:
            for place in self.known.incomplete_places.get(pool, (DevicePlace(),)):
                if not place.node:
                    nodes |= True if place.terms is None else nodes_of_terms(state, place.terms)
                elif place.node in state.row_of:
                    nodes[state.row_of[place.node]] = True
        return nodes

    def _rows(self, state: StateView, selected: Iterable[Bools]) -> list[int]:
        """Return the rows with local devices and the rows of the masks; most nodes of a cluster may have no devices."""
        local = {state.row_of[name] for name in self._by_node if name in state.row_of}
        return sorted(local.union(*(np.flatnonzero(nodes).tolist() for nodes in selected)))

    def needed(self, pod: PodSpec) -> bool:
        """Return whether a pod may need devices: for claims, or for extended resources."""
        shape = pod.shape
        return bool(shape.devices or pod.extended_claim or (shape.extended and served_resources(shape, self.known)))

    def left_claim(self, pod: PodSpec) -> ResourceClaim | None:
        """Return the claim for extended resources that an earlier binding of a pod left, None if there is none."""
        return self.known.claims.get(f"{pod.namespace}/{claim_name(pod)}") if pod.shape.extended else None

    def usage(self, pod: PodSpec | None = None) -> DeviceUsage:
        """Return the use of the devices by all claims and placed pods.

        The claim for extended resources that an earlier binding of `pod` left is not counted, because it is replaced.
        """
        left = None if pod is None else self.left_claim(pod)
        if left is not None and left.allocated:
            others = {key: claim for key, claim in self.known.claims.items() if key != left.key}
            return DeviceUsage(msgspec.structs.replace(self.known, claims=others), self.promised)
        if self._usage is None:
            self._usage = DeviceUsage(self.known, self.promised)
        return self._usage

    def searches(self, claims: Sequence[ResourceClaim], state: StateView, usage: DeviceUsage) -> Mapping[int, str]:
        """Return the result of `allocate` for each row with devices; it is empty if there are devices."""

        def search(node: NodeDevices) -> str:
            found = self.allocate(claims, node, usage)
            return found if isinstance(found, str) else ""

        nodes = state.once("devices by node", lambda: self.by_node(state))
        verdicts = self._verdicts if usage is self._usage else DeviceVerdicts()
        return verdicts.search(claims, nodes, self.known.devices, search)

    def allocate(
        self,
        claims: Sequence[ResourceClaim],
        node: NodeDevices,
        usage: DeviceUsage,
        avoided: Collection[int] = (),
    ) -> list[DeviceGrant] | str:
        """Return devices for all open claims of a pod among a node's devices, or the reason why there are none.

        Requests without admin access get none of the `avoided` devices. The reason is `few` (too few free devices),
        `taints` (enough devices only if taints are ignored) or `search` (the search was stopped).
        """
        find = partial(DeviceSearch, self.known, lambda wish: self.matching(wish)[0], node, usage, avoided=avoided)
        search = find()
        found = search.run(claims)
        if found != "few" or not search.has_repelled:
            return found
        untainted = find(ignore_taints=True).run(claims)
        return untainted if isinstance(untainted, str) else "taints"


def _refused(code: str, message: Message, *missing: str) -> Refusal:
    return Refusal(code, message, missing, verdict=Verdict.NOT_NOW)
