"""The default filters and scores in plain Python, without columns or caches.

It implements Kubernetes' documentation and kube-scheduler's formulas node by node and pod by pod, and shares no code
with the engine except the contracts. It is slow on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.node_images import image_key, unpack_keys
from hetsched.contracts.objects.node_report import NodeReport, Taint
from hetsched.contracts.objects.workload import LabelSelector, PodSpec, PodTerm, Shape, SpreadConstraint

HOSTNAME = "kubernetes.io/hostname"
WHOLE = 1000


class Oracle:
    """A cluster as a list of (pod, node) pairs."""

    def __init__(self, nodes: Iterable[NodeReport], namespaces: dict[str, dict[str, str]] | None = None) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.namespaces = namespaces or {}
        self.placed: list[tuple[PodSpec, NodeReport]] = []
        self.cards: dict[str, dict[int, int]] = {}  # milli allocated by pod key and GPU index

    def schedule(self, pod: PodSpec) -> str | None:
        """Place a pod on the node with the highest total; the lowest name wins ties."""
        fitting = self.feasible(pod)
        if not fitting:
            return None
        totals = self.totals(pod, fitting)
        best = max(totals.values())
        chosen = next(node for node in fitting if totals[node.name] == best)
        self.cards[pod.key] = self._take_cards(pod, chosen)
        self.placed.append((pod, chosen))
        return chosen.name

    def forget(self, key: str) -> None:
        self.placed = [(pod, node) for pod, node in self.placed if pod.key != key]
        self.cards.pop(key, None)

    # -- filters -----------------------------------------------------------------------------------------------

    def feasible(self, pod: PodSpec) -> list[NodeReport]:
        rules: tuple[Callable[[PodSpec, NodeReport], bool], ...] = (
            self._takes_pods, self._tolerated, self._node_affinity, self._declares_features, self._resources,
            self._gpu, self._ports, self._pod_affinity, self._pod_anti_affinity, self._wanted_by_others, self._spread,
        )  # fmt: skip
        return [node for node in self.nodes if all(rule(pod, node) for rule in rules)]

    def _takes_pods(self, pod: PodSpec, node: NodeReport) -> bool:
        cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
        unready = [Taint(f"node.kubernetes.io/{name}", "", "NoSchedule") for name in ("not-ready", "unreachable")]
        ready = node.ready or any(tolerates(pod.shape, taint) for taint in unready)
        return ready and (not node.unschedulable or tolerates(pod.shape, cordon))

    def _tolerated(self, pod: PodSpec, node: NodeReport) -> bool:
        return all(tolerates(pod.shape, taint) for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute"))

    def _declares_features(self, pod: PodSpec, node: NodeReport) -> bool:
        return set(pod.shape.node_features) <= set(node.declared_features)

    def _node_affinity(self, pod: PodSpec, node: NodeReport) -> bool:
        return pod.shape.required_node in ("", node.name) and node_affinity(pod.shape, node)

    def _resources(self, pod: PodSpec, node: NodeReport) -> bool:
        return all(
            self._requested(node, name) + amount <= node.allocatable.get(name, 0)
            for name, amount in pod.shape.requests
            if amount
        )

    def _requested(self, node: NodeReport, resource: str) -> int:
        return sum(pod.shape.request(resource) for pod, where in self.placed if where is node)

    def _free_cards(self, node: NodeReport) -> dict[int, int]:
        free = {card.index: WHOLE if card.healthy else 0 for card in node.gpus or ()}
        for pod, where in self.placed:
            if where is node:
                for index, milli in self.cards[pod.key].items():
                    free[index] -= milli
        return free

    def _gpu(self, pod: PodSpec, node: NodeReport) -> bool:
        demand = pod.shape.gpu
        if demand is None:
            return True
        return sum(free >= demand.milli for free in self._free_cards(node).values()) >= demand.count

    def _take_cards(self, pod: PodSpec, node: NodeReport) -> dict[int, int]:
        demand = pod.shape.gpu
        if demand is None:
            return {}
        free = {index: milli for index, milli in self._free_cards(node).items() if milli >= demand.milli}
        order = sorted(free) if demand.milli == WHOLE else sorted(free, key=lambda index: (free[index], index))
        return dict.fromkeys(order[: demand.count], demand.milli)

    def _ports(self, pod: PodSpec, node: NodeReport) -> bool:
        return not any(
            (host_port.port, host_port.protocol) == (port.port, port.protocol)
            and (host_port.ip == port.ip or "0.0.0.0" in (host_port.ip, port.ip))
            for port in pod.shape.host_ports
            for other, where in self.placed
            if where is node
            for host_port in other.shape.host_ports
        )

    # -- rules between pods --------------------------------------------------------------------------------------

    def means(self, term: PodTerm, stated_by: PodSpec, pod: PodSpec) -> bool:
        """Return whether a term of one pod matches another pod."""
        if not term.namespaces and term.namespace_selector is None:
            inside = pod.namespace == stated_by.namespace
        else:
            labels = dict(self.namespaces.get(pod.namespace, {}))
            labels["kubernetes.io/metadata.name"] = pod.namespace
            inside = pod.namespace in term.namespaces or selects(term.namespace_selector, labels)
        return inside and selects(term.selector, pod.labels)

    def _pod_affinity(self, pod: PodSpec, node: NodeReport) -> bool:
        terms = pod.shape.affinity
        if not terms:
            return True
        if any(term.topology_key not in node.labels for term in terms):
            return False
        friends = [where for other, where in self.placed if all(self.means(term, pod, other) for term in terms)]
        if all(any(same_domain(term.topology_key, node, friend) for friend in friends) for term in terms):
            return True
        in_some_domain = any(term.topology_key in friend.labels for term in terms for friend in friends)
        return not in_some_domain and all(self.means(term, pod, pod) for term in terms)

    def _pod_anti_affinity(self, pod: PodSpec, node: NodeReport) -> bool:
        return not any(
            self.means(term, pod, other) and same_domain(term.topology_key, node, where)
            for term in pod.shape.anti_affinity
            for other, where in self.placed
        )

    def _wanted_by_others(self, pod: PodSpec, node: NodeReport) -> bool:
        return not any(
            self.means(term, other, pod) and same_domain(term.topology_key, node, where)
            for other, where in self.placed
            for term in other.shape.anti_affinity
        )

    def _counted(
        self, pod: PodSpec, constraints: list[SpreadConstraint], constraint: SpreadConstraint
    ) -> list[NodeReport]:
        """Return the nodes whose pods are counted for a constraint."""
        return [
            node
            for node in self.nodes
            if all(other.topology_key in node.labels for other in constraints)
            and (not constraint.honor_node_affinity or node_affinity(pod.shape, node))
            and (not constraint.honor_taints or self._tolerated(pod, node))
        ]

    def _selected(self, pod: PodSpec, constraint: SpreadConstraint, node: NodeReport) -> int:
        """Count the pods of a node that a constraint selects; an empty selector selects no pods."""
        if constraint.selector is None or not constraint.selector.expressions:
            return 0
        return sum(
            where is node and other.namespace == pod.namespace and selects(constraint.selector, other.labels)
            for other, where in self.placed
        )

    def _spread(self, pod: PodSpec, node: NodeReport) -> bool:
        constraints = [constraint for constraint in pod.shape.spread if constraint.hard]
        for constraint in constraints:
            key = constraint.topology_key
            if key not in node.labels:
                return False
            domains: dict[str, int] = {}
            for counted in self._counted(pod, constraints, constraint):
                domain = counted.labels[key]
                domains[domain] = domains.get(domain, 0) + self._selected(pod, constraint, counted)
            least = 0 if len(domains) < constraint.min_domains else min(domains.values(), default=0)
            here = domains.get(node.labels[key], 0) + selects(constraint.selector, pod.labels)
            if here - least > constraint.max_skew:
                return False
        return True

    # -- scores ------------------------------------------------------------------------------------------------

    def totals(self, pod: PodSpec, fitting: list[NodeReport]) -> dict[str, int]:
        """Return the weighted totals of `default-kube` by node name."""
        parts = (
            (3, largest_is_100([self._soft_taints(pod, node) for node in fitting], less_is_better=True)),
            (2, largest_is_100([preferred_nodes(pod.shape, node) for node in fitting])),
            (2, span([self._wishes(pod, node) for node in fitting])),
            (2, self._evenness(pod, fitting)),
            (1, [self._least_allocated(pod, node) for node in fitting]),
            (1, [self._balanced(pod, node) for node in fitting]),
            (1, [self._locality(pod, node) for node in fitting]),
        )
        return {
            node.name: sum(weight * scores[position] for weight, scores in parts)
            for position, node in enumerate(fitting)
        }

    def _locality(self, pod: PodSpec, node: NodeReport) -> int:
        """Return kube-scheduler's score ImageLocality."""
        sizes = {other.name: dict(unpack_keys(other.image_sizes)) for other in self.nodes}
        total = 0
        for image in map(image_key, pod.shape.images):
            spread = sum(image in held for held in sizes.values()) / len(sizes)
            total += int(sizes[node.name].get(image, 0) * spread)
        least, most = 23 << 20, (1000 << 20) * len(pod.shape.images)
        return 100 * (min(max(total, least), most) - least) // (most - least) if pod.shape.images else 0

    def _soft_taints(self, pod: PodSpec, node: NodeReport) -> int:
        return sum(t.effect == "PreferNoSchedule" and not tolerates(pod.shape, t) for t in node.taints)

    def _wishes(self, pod: PodSpec, node: NodeReport) -> int:
        total = 0
        for other, where in self.placed:
            wishes = [(term, term.weight, pod, other) for term in pod.shape.preferred_affinity]
            wishes += [(term, term.weight, other, pod) for term in other.shape.preferred_affinity]
            wishes += [(term, 1, other, pod) for term in other.shape.affinity]
            for term, weight, stated_by, meant in wishes:
                if self.means(term, stated_by, meant) and same_domain(term.topology_key, node, where):
                    total += weight
        return total

    def _evenness(self, pod: PodSpec, fitting: list[NodeReport]) -> list[int]:
        constraints = [constraint for constraint in pod.shape.spread if not constraint.hard]
        if not constraints:
            return [0] * len(fitting)
        labelled = [node for node in fitting if all(c.topology_key in node.labels for c in constraints)]
        raw: dict[str, int] = {}
        for node in labelled:
            total = 0.0
            for constraint in constraints:
                key = constraint.topology_key
                if key == HOSTNAME:
                    count, domains = self._selected(pod, constraint, node), len(labelled)
                else:
                    counted = self._counted(pod, constraints, constraint)
                    inside = [other for other in counted if same_domain(key, node, other)]
                    count = sum(self._selected(pod, constraint, other) for other in inside)
                    domains = len({other.labels[key] for other in labelled})
                total += count * math.log(domains + 2) + constraint.max_skew - 1
            raw[node.name] = math.floor(total + 0.5)
        most, least = max(raw.values(), default=0), min(raw.values(), default=0)
        even = {name: 100 * (most + least - score) // most if most else 100 for name, score in raw.items()}
        return [even.get(node.name, 0) for node in fitting]

    def _nonzero(self, pod: PodSpec, node: NodeReport) -> tuple[int, int]:
        on_it = [other.shape for other, where in self.placed if where is node] + [pod.shape]
        return sum(s.nonzero_cpu_millis for s in on_it), sum(s.nonzero_memory_bytes for s in on_it)

    def _least_allocated(self, pod: PodSpec, node: NodeReport) -> int:
        used = self._nonzero(pod, node)
        capacity = node.allocatable["cpu"], node.allocatable["memory"]
        remaining = [max(0, (c - u) * 100 // c) if c else 0 for u, c in zip(used, capacity, strict=True)]
        return sum(remaining) // 2

    def _balanced(self, pod: PodSpec, node: NodeReport) -> int:
        asked = {name: pod.shape.request(name) for name in ("cpu", "memory")}
        if not any(asked.values()):
            return 0
        before, after = self._balance(node, dict.fromkeys(asked, 0)), self._balance(node, asked)
        return 50 + (50 + after - before) // 2

    def _balance(self, node: NodeReport, asked: Mapping[str, int]) -> int:
        cpu, memory = (
            min(1.0, (self._requested(node, name) + amount) / node.allocatable[name]) for name, amount in asked.items()
        )
        return int((1 - abs((cpu - memory) / 2)) * 100)


def meets(expression: Expression, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression.key), expression.values
    match expression.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:
        left, right = int(value or ""), int(values[0])
    except ValueError:
        return False
    return left > right if expression.operator == "Gt" else left < right


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    return selector is not None and all(meets(expression, labels) for expression in selector.expressions)


def tolerates(shape: Shape, taint: Taint) -> bool:
    for toleration in shape.tolerations:
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if toleration.key and toleration.key != taint.key:
            continue
        if toleration.operator == "Exists" or toleration.value == taint.value:
            return True
    return False


def term_holds(term: NodeTerm, node: NodeReport) -> bool:
    if not term.expressions and not term.fields:
        return False
    named = {"metadata.name": node.name}
    return all(meets(e, node.labels) for e in term.expressions) and all(meets(e, named) for e in term.fields)


def node_affinity(shape: Shape, node: NodeReport) -> bool:
    if any(node.labels.get(key) != value for key, value in shape.node_selector):
        return False
    return shape.node_terms is None or any(term_holds(term, node) for term in shape.node_terms)


def preferred_nodes(shape: Shape, node: NodeReport) -> int:
    return sum(wish.weight for wish in shape.preferred_nodes if term_holds(wish.term, node))


def same_domain(key: str, report: NodeReport, other: NodeReport) -> bool:
    return key in report.labels and report.labels[key] == other.labels.get(key)


def largest_is_100(counts: list[int], *, less_is_better: bool = False) -> list[int]:
    largest = max(counts)
    shares = [100 * count // largest if largest else 0 for count in counts]
    return [100 - share for share in shares] if less_is_better else shares


def span(scores: list[int]) -> list[int]:
    least, most = min(scores), max(scores)
    return [int(100.0 * ((score - least) / (most - least))) if most > least else 0 for score in scores]
