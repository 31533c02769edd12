"""Alternative instruction sets: fewer extensions, a lower level, emulation, a build for another architecture.

A requirement is lowered to the subset that a machine (or its emulator) has; each name that is removed adds 1/2 to the
size of the change. If some node emulates the native requirement, or has a cross toolchain for it, a change that allows
this has the size of one rule. A build for another architecture has the size of the whole request, and is returned only
if no other change helps. A requirement that is derived from a node selector is relaxed in the selector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.contracts.objects.wishes import ARCH, CROSS_ISA, EMULATED_ISA, ISA, KUBERNETES_ARCH, QEMU
from hetsched.contracts.objects.workload import IsaDemand, Shape
from hetsched.engine.cluster.columns import Rows
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.isa.isa_strings import offered_isa, required_isa
from hetsched.isa import label_value, match, parse
from hetsched.isa.covered_part import covered_part

from .relaxations import RULE_SIZE, Apply, Fits, Relaxation, Step
from .rule_relaxations import MOST_OPTIONS

_FIELDS = {"emulated": EMULATED_ISA, "cross": CROSS_ISA, "qemu": QEMU}
_BASES = {"x86": "amd64", "arm": "arm64", "riscv": "rv64i"}
_ANOTHER_BUILD = 2 * RULE_SIZE


def instruction_sets(shape: Shape, state: ClusterState) -> Iterator[Relaxation]:
    """Yield a relaxation of the pod's instruction-set requirement, if it has one."""
    if shape.isa is not None and shape.isa.source != KUBERNETES_ARCH:
        yield _InstructionSet(state)


class _InstructionSet:
    """A pod's instruction set requirement, from any of its fields."""

    loosest: Apply = staticmethod(partial(msgspec.structs.replace, isa=None))

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def steps(self, shape: Shape, fits: Fits, rows: Rows) -> Iterator[Step]:
        demand = shape.isa
        if demand is None:
            return
        ids, counts = np.unique(self._state.columns.field("isa_offer")[rows], return_counts=True)
        by_count = ids[np.argsort(-counts, kind="stable")].tolist()
        offers = [self._state.offers.values[offer] for offer in by_count]
        for steps in ((*_lowered(demand, offers), *_emulation(demand)), _other_builds(demand, offers)):
            found = [step for step in _distinct(steps) if fits(step.apply(shape), rows).size]
            if found:
                yield from found
                return


def _distinct(steps: Iterable[Step]) -> list[Step]:
    """Return at most MOST_OPTIONS steps, smallest first; among steps with the same result, only the smallest."""
    found: dict[tuple[str, str], Step] = {}
    for step in sorted(steps, key=lambda step: step.size):
        found.setdefault((step.field, step.to), step)
    return list(found.values())[:MOST_OPTIONS]


def _lowered(demand: IsaDemand, offers: Iterable[IsaReport]) -> Iterator[Step]:
    for offer in offers:
        native = () if offer.native is None else (offer.native,)
        emulators = {"emulated": offer.emulated, "cross": offer.cross, "qemu": offer.emulated + offer.cross}
        if demand.native:
            yield from _lower("native", demand.native, native, demand)
        for kind, offered in emulators.items():
            asked: str = getattr(demand, kind)
            if asked:
                yield from _lower(kind, asked, offered if demand.native else native + offered, demand)


def _lower(kind: str, asked: str, offers: Iterable[str], demand: IsaDemand) -> Iterator[Step]:
    field = _native_field(demand) if kind == "native" else _FIELDS[kind]
    required = required_isa(asked)
    for text in offers:
        offered = offered_isa(text)
        lacking = match(required, offered).missing
        part = covered_part(required, offered)
        if lacking and part is not None:
            to = _written(part, demand, kind)
            if to is not None:
                words = Message("{field} {was} -> {now}", field=field.rpartition("/")[2], was=asked, now=to)
                yield Step(field, asked, to, words, RULE_SIZE * len(lacking), _stating(kind, to))


def _emulation(demand: IsaDemand) -> Iterator[Step]:
    if demand.native:
        for kind, template in (
            ("emulated", "allow emulation of {isa}"),
            ("cross", "allow a cross toolchain for {isa}"),
        ):
            if not getattr(demand, kind):
                words = Message(template, isa=demand.native)
                yield Step(_FIELDS[kind], "", demand.native, words, RULE_SIZE, _stating(kind, demand.native))


def _other_builds(demand: IsaDemand, offers: Iterable[IsaReport]) -> Iterator[Step]:
    if not demand.native:
        return
    asked, field = demand.native, _native_field(demand)
    for offer in offers:
        if offer.native is not None and offered_isa(offer.native).arch != required_isa(asked).arch:
            to = _BASES[offered_isa(offer.native).arch]
            words = Message(
                "{field} {was} -> {now}, which requires a different build",
                field=field.rpartition("/")[2],
                was=asked,
                now=to,
            )
            yield Step(field, asked, to, words, _ANOTHER_BUILD, _stating("native", to))


def _stating(kind: str, text: str) -> Apply:
    return partial(_stated, kind=kind, text=text)


def _stated(shape: Shape, kind: str, text: str) -> Shape:
    assert shape.isa is not None
    return msgspec.structs.replace(shape, isa=msgspec.structs.replace(shape.isa, **{kind: text}))


def _native_field(demand: IsaDemand) -> str:
    return ARCH if demand.source == f"label {ARCH}" else ISA


def _written(text: str, demand: IsaDemand, kind: str) -> str | None:
    """Format a requirement for its field; a label value may not contain `+` or exceed 63 characters."""
    in_label = kind == "qemu" or (kind == "native" and demand.source.startswith("label"))
    return label_value(parse(text)) if in_label else text
