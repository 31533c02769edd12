"""Pseudonyms for names that occur in several places, and for the selectors that compare them.

Equal names get equal pseudonyms: a label's value and the same value in a selector, a node and its host name, a claim
and the pods that use it. Integers that a selector compares by size are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from hetsched.adapters.objects.storage import ZONE_SEPARATOR
from hetsched.contracts.objects.devices import CLASS_RESOURCE_PREFIX, BindingConditions, DeviceId
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm, Toleration
from hetsched.contracts.objects.node_report import Taint
from hetsched.contracts.objects.pinned_memory import MemoryGrant
from hetsched.contracts.objects.storage import NO_PROVISIONER
from hetsched.contracts.objects.workload import ClaimRequest, LabelSelector
from hetsched.contracts.times import seconds

from . import well_known
from .pseudonyms import Pseudonyms, Realm
from .realms import (
    ATTRIBUTE,
    CLASS,
    DEVICE,
    DEVICE_CLASS,
    DRIVER,
    GANG,
    KEY,
    KIND,
    NAMESPACE,
    NODE,
    OWNER,
    POOL,
    REQUEST,
    RESOURCE,
    UID,
    VALUE,
    VENDOR,
    ZONE_STEM,
)

WITHHELD = "withheld"

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_ZONE = re.compile(r"(.*?)([0-9]{1,9})?", re.DOTALL | re.ASCII)
_T = TypeVar("_T")


class NameAnonymizer:
    """Anonymizer of names that occur in several places.

    `by_size` lists the keys whose values are compared by size. Until `pseudonyms.settle()` is called, names are
    collected and returned unchanged.
    """

    def __init__(self, pseudonyms: Pseudonyms, by_size: frozenset[str] = frozenset()) -> None:
        self.of = pseudonyms.of
        self._by_size = by_size
        self.sized: set[str] = set()  # keys of requirements with operator Gt or Lt

    def node(self, name: str) -> str:
        return self.of(NODE, name)

    def namespace(self, name: str) -> str:
        return self.of(NAMESPACE, name)

    def key_of(self, realm: Realm, key: str) -> str:
        """Rename both parts of an object key `namespace/name`; `realm` is the realm of the name."""
        namespace, slash, name = key.partition("/")
        return f"{self.namespace(namespace)}{slash}{self.of(realm, name)}"

    def key(self, key: str) -> str:
        """Rename the key of a label or a taint."""
        return self.of(KEY, key, stays=well_known.is_known_key(key))

    def value(self, key: str, value: str) -> str:
        """Rename the value of a label or a taint, or a value that a selector or toleration compares it with."""
        if key == well_known.HOST_NAME:
            return self.node(value)
        if key == well_known.NAMESPACE_NAME:
            return self.namespace(value)
        if key in well_known.GANGS:
            return self.of(GANG, value)
        if key in well_known.ZONES:
            return ZONE_SEPARATOR.join(self.of(VALUE, part) for part in value.split(ZONE_SEPARATOR))
        if well_known.has_meaning(key):
            return self.of(VALUE._replace(of=key), value, stays=well_known.is_known_value(key, value))
        if value in well_known.PLAIN_WORDS and well_known.is_known_key(key):
            return value
        sized = key in self._by_size and _INTEGER.fullmatch(value) is not None
        return value if sized else self.of(VALUE, value, stays=value in well_known.PLAIN_WORDS)

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {self.key(key): self.value(key, value) for key, value in labels.items()}

    def pairs(self, labels: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.labels(dict(labels)).items()))

    def resource(self, resource: str) -> str:
        if resource.startswith(CLASS_RESOURCE_PREFIX):
            return CLASS_RESOURCE_PREFIX + self.of(DEVICE_CLASS, resource.removeprefix(CLASS_RESOURCE_PREFIX))
        return self.of(RESOURCE, resource, stays=well_known.is_known_resource(resource))

    def resources(self, resources: Mapping[str, int]) -> dict[str, int]:
        return {self.resource(name): amount for name, amount in resources.items()}

    def amounts(self, resources: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self.resources(dict(resources)).items()))

    def zone(self, name: str) -> str:
        """Rename a NUMA zone but keep the number at the end of its name, because zones are matched by this number."""
        found = _ZONE.fullmatch(name)
        assert found is not None  # the pattern matches any text
        return self.of(ZONE_STEM, found[1], stays=found[1] in well_known.ZONE_STEMS) + (found[2] or "")

    def memory(self, grant: MemoryGrant) -> MemoryGrant:
        return MemoryGrant(tuple(map(self.zone, grant.zones)), self.resource(grant.kind), grant.size)

    def controller(self, controller: str) -> str:
        kind, slash, name = controller.partition("/")
        shown_kind = kind if kind in well_known.KINDS else self.of(KIND, kind)
        return f"{shown_kind}{slash}{self.of(OWNER, name)}"

    def uid(self, uid: str) -> str:
        return self.of(UID, uid)

    def driver(self, name: str) -> str:
        return name if name == NO_PROVISIONER else self.of(DRIVER, name)

    def vendor(self, vendor: str) -> str:
        return vendor if vendor in well_known.VENDORS else self.of(VENDOR, vendor)

    def device_id(self, device: DeviceId) -> DeviceId:
        return DeviceId(self.driver(device.driver), self.of(POOL, device.pool), self.of(DEVICE, device.name))

    def capacity(self, amounts: Mapping[str, int] | None) -> dict[str, int] | None:
        return None if amounts is None else {self.of(ATTRIBUTE, name): amount for name, amount in amounts.items()}

    def binding_conditions(self, conditions: BindingConditions | None) -> BindingConditions | None:
        if conditions is None:
            return None
        return BindingConditions(
            tuple(self.of(ATTRIBUTE, kind) for kind in conditions.required),
            tuple(self.of(ATTRIBUTE, kind) for kind in conditions.failure),
        )

    def request_name(self, name: str) -> str:
        """Rename a device request `request`, or both parts of `request/alternative`."""
        return "/".join(self.of(REQUEST, part) for part in name.split("/"))

    # -- selectors -------------------------------------------------------------------------------------------------

    def expression(self, expression: Expression) -> Expression:
        if expression.operator in ("Gt", "Lt"):
            self.sized.add(expression.key)
        values = tuple(self.value(expression.key, value) for value in expression.values)
        return Expression(self.key(expression.key), expression.operator, values)

    def _field(self, expression: Expression) -> Expression:
        """Rename the nodes in a requirement on `metadata.name`, the only field that is supported."""
        return Expression("metadata.name", expression.operator, renamed(self.node, expression.values))

    def node_term(self, term: NodeTerm) -> NodeTerm:
        return NodeTerm(renamed(self.expression, term.expressions), renamed(self._field, term.fields))

    def node_terms(self, terms: tuple[NodeTerm, ...] | None) -> tuple[NodeTerm, ...] | None:
        return None if terms is None else renamed(self.node_term, terms)

    def selector(self, selector: LabelSelector | None) -> LabelSelector | None:
        return None if selector is None else LabelSelector(renamed(self.expression, selector.expressions))

    def taint(self, taint: Taint) -> Taint:
        return Taint(self.key(taint.key), self.value(taint.key, taint.value), taint.effect)

    def toleration(self, found: Toleration) -> Toleration:
        return Toleration(self.key(found.key), found.operator, self.value(found.key, found.value), found.effect)

    def asks(self, asks: ClaimRequest) -> ClaimRequest:
        return ClaimRequest(
            storage_class=None if asks.storage_class is None else self.of(CLASS, asks.storage_class),
            request_bytes=asks.request_bytes,
            modes=asks.modes,
            block=asks.block,
            selector=self.selector(asks.selector),
        )


# -- helpers, and values that are not renamed --------------------------------------------------------------------------


def renamed(rename: Callable[[_T], _T], found: Iterable[_T]) -> tuple[_T, ...]:
    """Apply `rename` to every item."""
    return tuple(map(rename, found))


def known_isa(text: str | None) -> str | None:
    """Return the text if it is a valid instruction set, else None."""
    return text if text is not None and well_known.is_isa(text) else None


def one_of(text: str | None, known: Iterable[str], *, other: str | None = WITHHELD) -> str | None:
    """Return `text` if it is None or in `known`, else `other`."""
    return text if text is None or text in known else other


def moment(text: str) -> str:
    """Return the text if it is a valid time, else an empty string."""
    return text if seconds(text) is not None else ""
