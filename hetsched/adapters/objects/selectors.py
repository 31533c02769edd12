"""Readers of a pod's label constraints: selectors, affinity, tolerations and topology spread.

A selector is read as a tuple of expressions: first `matchLabels` as `In` expressions in the order of their keys, then
`matchExpressions`. `matchLabelKeys` and `mismatchLabelKeys` are resolved with the pod's own labels, as the API server
does at admission.
Source: Kubernetes core/v1 PodSpec and its validation.
"""

from __future__ import annotations

import re

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm, Toleration
from hetsched.contracts.objects.node_report import Taint
from hetsched.contracts.objects.workload import LabelSelector, PodTerm, PreferredNodeTerm, SpreadConstraint
from hetsched.contracts.remedies import ADD_FIELD, WRITE_KEY, valid_name

from .fields import FieldView, is_label_value, is_qualified_name

_SET_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATORS = (*_SET_OPERATORS, "Gt", "Lt")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOPOLOGY_KEY = "Write the key of a node label, such as topology.kubernetes.io/zone"
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def taint(view: FieldView) -> Taint:
    """Read one taint of a node."""
    if not is_qualified_name(view.text("key")):
        view.fail("is not a valid taint key", "key", code="LabelInvalid", hint=WRITE_KEY)
    return Taint(view.text("key"), view.text("value"), view.choice("effect", _EFFECTS))


def tolerations(spec: FieldView) -> tuple[Toleration, ...]:
    """Read a pod's tolerations."""
    found = []
    for view in spec.views("tolerations"):
        operator = view.choice("operator", ("", "Equal", "Exists"), "") or "Equal"
        toleration = Toleration(
            view.text("key"), operator, view.text("value"), view.choice("effect", ("", *_EFFECTS), "")
        )
        if not toleration.key and operator != "Exists":
            view.fail("must be Exists if the key is empty", "operator", hint="Set the operator to Exists, or add a key")
        if operator == "Exists" and toleration.value:
            view.fail(
                "must be empty if the operator is Exists",
                "value",
                hint="Remove the value, or set the operator to Equal",
            )
        found.append(toleration)
    return tuple(found)


def expressions(view: FieldView, key: str, operators: tuple[str, ...]) -> tuple[Expression, ...]:
    """Read `matchExpressions` or `matchFields`."""
    found = []
    for item in view.views(key):
        operator = item.choice("operator", operators)
        values = item.texts("values")
        if not is_qualified_name(item.text("key")):
            item.fail("is not a valid label key", "key", code="LabelInvalid", hint=WRITE_KEY)
        if operator in ("In", "NotIn") and not values:
            message = Message("must not be empty for {operator}", operator=operator)
            item.fail(message, "values", hint="List at least one value, or set the operator to Exists or DoesNotExist")
        if operator in ("Exists", "DoesNotExist") and values:
            message = Message("must be empty for {operator}", operator=operator)
            item.fail(message, "values", hint="Remove the values, or set the operator to In or NotIn")
        if operator in ("Gt", "Lt") and (len(values) != 1 or not _INTEGER.fullmatch(values[0])):
            message = Message("must be one whole number for {operator}", operator=operator)
            item.fail(message, "values", hint='List one whole number in quotes, such as "8"')
        found.append(Expression(item.text("key"), operator, values))
    return tuple(found)


def node_selector(view: FieldView) -> tuple[tuple[str, str], ...]:
    """Read `nodeSelector` in the order of its keys."""
    return tuple(sorted(view.labels("nodeSelector").items()))


def node_term(view: FieldView) -> NodeTerm:
    """Read one node selector term."""
    fields = expressions(view, "matchFields", ("In", "NotIn"))
    for position, field in enumerate(fields):
        if field.key != "metadata.name" or len(field.values) != 1:
            view.views("matchFields")[position].fail(
                "must be metadata.name with one value", "key", hint="Use matchExpressions for labels"
            )
    return NodeTerm(expressions(view, "matchExpressions", _NODE_OPERATORS), fields)


def node_terms(view: FieldView) -> tuple[NodeTerm, ...] | None:
    """Read the terms of a `nodeSelector` of a device or an allocation; return None if there is no selector."""
    if "nodeSelector" not in view:
        return None
    return tuple(node_term(term) for term in view.view("nodeSelector").views("nodeSelectorTerms"))


def node_affinity(affinity: FieldView) -> tuple[tuple[NodeTerm, ...] | None, tuple[PreferredNodeTerm, ...]]:
    """Read the required terms (None if there is no requirement) and the preferred terms."""
    view = affinity.view("nodeAffinity")
    required: tuple[NodeTerm, ...] | None = None
    if "requiredDuringSchedulingIgnoredDuringExecution" in view:
        selector = view.view("requiredDuringSchedulingIgnoredDuringExecution")
        required = tuple(node_term(term) for term in selector.views("nodeSelectorTerms"))
        if not required:
            selector.fail(
                "must have at least one term",
                "nodeSelectorTerms",
                hint="Add a term with matchExpressions or matchFields",
            )
    preferred = tuple(
        PreferredNodeTerm(_weight(item), node_term(item.view("preference")))
        for item in view.views("preferredDuringSchedulingIgnoredDuringExecution")
    )
    return required, preferred


def _weight(view: FieldView) -> int:
    if "weight" not in view:
        view.fail("is required", "weight", hint=ADD_FIELD)
    return view.integer("weight", least=1, most=100)


def label_selector(view: FieldView, key: str) -> LabelSelector | None:
    """Read a label selector; return None if it is absent, in which case no pods are selected."""
    if key not in view:
        return None
    selector = view.view(key)
    equal = tuple(Expression(name, "In", (value,)) for name, value in sorted(selector.labels("matchLabels").items()))
    return LabelSelector(equal + expressions(selector, "matchExpressions", _SET_OPERATORS))


def _with_own_labels(selector: LabelSelector | None, view: FieldView, labels: dict[str, str]) -> LabelSelector | None:
    """Add the expressions of `matchLabelKeys` and `mismatchLabelKeys` for a pod with these labels."""
    added = tuple(
        Expression(key, operator, (labels[key],))
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in view.texts(field)
        if key in labels
    )
    if not added:
        return selector
    if selector is None:
        view.fail("requires a labelSelector", "matchLabelKeys", hint="Add a labelSelector, or remove this field")
    return LabelSelector(selector.expressions + added)


def _topology_key(view: FieldView) -> str:
    key = view.text("topologyKey")
    if not is_qualified_name(key):
        view.fail("must be a label key", "topologyKey", code="LabelInvalid", hint=_TOPOLOGY_KEY)
    return key


def pod_term(view: FieldView, labels: dict[str, str], weight: int = 0) -> PodTerm:
    """Read one inter-pod affinity term of a pod with `labels`."""
    namespaces = view.texts("namespaces")
    for namespace in namespaces:
        if not is_label_value(namespace):
            hint = valid_name(namespace, label=True)
            view.fail("must contain namespace names", "namespaces", code="NameInvalid", hint=hint)
    return PodTerm(
        topology_key=_topology_key(view),
        selector=_with_own_labels(label_selector(view, "labelSelector"), view, labels),
        namespaces=namespaces,
        namespace_selector=label_selector(view, "namespaceSelector"),
        weight=weight,
    )


def pod_affinity(view: FieldView, labels: dict[str, str], sign: int) -> tuple[tuple[PodTerm, ...], tuple[PodTerm, ...]]:
    """Read required and preferred terms; preferred weights are multiplied by `sign`."""
    required = tuple(pod_term(term, labels) for term in view.views("requiredDuringSchedulingIgnoredDuringExecution"))
    preferred = tuple(
        pod_term(item.view("podAffinityTerm"), labels, sign * _weight(item))
        for item in view.views("preferredDuringSchedulingIgnoredDuringExecution")
    )
    return required, preferred


def spread(spec: FieldView, labels: dict[str, str]) -> tuple[SpreadConstraint, ...]:
    """Read topology spread constraints."""
    found = []
    for view in spec.views("topologySpreadConstraints"):
        hard = view.choice("whenUnsatisfiable", ("DoNotSchedule", "ScheduleAnyway")) == "DoNotSchedule"
        if "minDomains" in view and not hard:
            view.fail(
                "is allowed only with DoNotSchedule",
                "minDomains",
                hint="Remove this field, or set whenUnsatisfiable to DoNotSchedule",
            )
        if "maxSkew" not in view:
            view.fail("is required", "maxSkew", hint=ADD_FIELD)
        found.append(
            SpreadConstraint(
                topology_key=_topology_key(view),
                max_skew=view.integer("maxSkew", least=1),
                hard=hard,
                selector=_with_own_labels(label_selector(view, "labelSelector"), view, labels),
                min_domains=view.integer("minDomains", 1, least=1),
                honor_node_affinity=view.choice("nodeAffinityPolicy", ("Honor", "Ignore"), "Honor") == "Honor",
                honor_taints=view.choice("nodeTaintsPolicy", ("Honor", "Ignore"), "Ignore") == "Honor",
            )
        )
    return tuple(found)
