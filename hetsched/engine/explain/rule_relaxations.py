"""Rules of a request that can be dropped or widened: selectors, taints, neighbours, ports, zones, GPU models.

`loosest` drops the whole field. If the pod then fits, the options are tried: first each entry dropped alone, then the
whole field.
Options that widen a rule use the values of the nodes that would then fit: their taints and GPU models. Taints that
represent a node's condition are not proposed for toleration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.cards import model_tokens
from hetsched.contracts.objects.node_constraints import NodeTerm, Toleration
from hetsched.contracts.objects.node_report import CONDITION_TAINTS, HARD_EFFECTS, Taint
from hetsched.contracts.objects.wishes import AWARENESS, CPU_POLICY, GPU_MODEL, KUBERNETES_ARCH
from hetsched.contracts.objects.workload import HostPort, NumaDemand, PodTerm, Shape
from hetsched.engine.cluster.columns import Rows
from hetsched.engine.cluster.selectors import expression_text, term_texts
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.tolerations import tolerates
from hetsched.engine.numa.zones import SHARING

from .relaxations import RULE_SIZE, Apply, Fits, Relaxation, Step

MOST_OPTIONS = 12

Options = Callable[[Shape, Rows], Iterable[Step]]


class FieldOptions:
    """Relaxation of a field that is not a number.

    `options` yields the changes of the field, given the shape and the rows of the nodes that fit without the field.
    """

    def __init__(self, loosest: Apply, options: Options) -> None:
        self.loosest = loosest
        self._options = options

    def steps(self, shape: Shape, fits: Fits, rows: Rows) -> Iterator[Step]:
        for step in islice(self._options(shape, rows), MOST_OPTIONS):
            if fits(step.apply(shape), rows).size:
                yield step


def rules(shape: Shape, state: ClusterState) -> Iterator[Relaxation]:
    """Yield the rules that a shape states, or that the nodes of `state` impose on it."""
    if shape.node_selector:
        yield FieldOptions(partial(_with_selector, kept=()), _selector_options)
    if shape.node_terms is not None:
        yield FieldOptions(partial(_replaced, node_terms=None), _term_options)
    yield FieldOptions(partial(_replaced, tolerations=(Toleration(operator="Exists"),)), partial(_taint_options, state))
    for name, field in (("affinity", "podAffinity"), ("anti_affinity", "podAntiAffinity")):
        if getattr(shape, name):
            nothing: dict[str, Any] = {name: ()}
            yield FieldOptions(
                partial(_replaced, **nothing), partial(_neighbour_options, name, f"spec.affinity.{field}")
            )
    if any(constraint.hard for constraint in shape.spread):
        yield FieldOptions(partial(_soft, positions=frozenset(range(len(shape.spread)))), _spread_options)
    if shape.host_ports:
        yield FieldOptions(partial(_replaced, host_ports=()), _port_options)
    if shape.gpu is not None and shape.gpu.models:
        yield _Models(state)
    if state.columns.layout.zones or shape.numa is not None:
        yield from _zone_choices(shape)


def _replaced(shape: Shape, **changes: Any) -> Shape:
    return msgspec.structs.replace(shape, **changes)


def _drops(
    field: str, words: str, entries: list[str], apply: Callable[[frozenset[int]], Apply], *, joined: str = ", "
) -> Iterator[Step]:
    """Yield one step for each entry of a list, which drops only this entry, then a step that drops all entries."""
    for position, text in enumerate(entries):
        change = Message("remove {field} {text}", field=words, text=text)
        yield Step(field, text, "", change, RULE_SIZE, apply(frozenset({position})))
    if len(entries) > 1:
        text = joined.join(entries)
        change = Message("remove {field} {text}", field=words, text=text)
        yield Step(field, text, "", change, RULE_SIZE * len(entries), apply(frozenset(range(len(entries)))))


def _without(shape: Shape, *, name: str, positions: frozenset[int]) -> Shape:
    kept = tuple(entry for position, entry in enumerate(getattr(shape, name)) if position not in positions)
    return msgspec.structs.replace(shape, **{name: kept})


# -- nodes ----------------------------------------------------------------------------------------------------------


def _with_selector(shape: Shape, kept: tuple[tuple[str, str], ...]) -> Shape:
    isa = shape.isa
    if isa is not None and isa.source == KUBERNETES_ARCH and KUBERNETES_ARCH not in dict(kept):
        isa = msgspec.structs.replace(isa, native="", source="")
        isa = isa if isa.is_stated or isa.images else None
    return msgspec.structs.replace(shape, node_selector=kept, isa=isa)


def _selector_options(shape: Shape, rows: Rows) -> Iterator[Step]:
    labels = shape.node_selector

    def dropping(positions: frozenset[int]) -> Apply:
        kept = tuple(label for position, label in enumerate(labels) if position not in positions)
        return partial(_with_selector, kept=kept)

    yield from _drops("spec.nodeSelector", "nodeSelector", [f"{key}={value}" for key, value in labels], dropping)


def _term_options(shape: Shape, rows: Rows) -> Iterator[Step]:
    """Yield one step for each requirement, which drops only this requirement, then a step without node affinity."""
    terms = shape.node_terms or ()
    field = "spec.affinity.nodeAffinity"
    if sum(len(term.expressions) + len(term.fields) for term in terms) > 1:
        for position, term in enumerate(terms):
            for expression in (*term.expressions, *term.fields):
                left = NodeTerm(
                    tuple(e for e in term.expressions if e is not expression),
                    tuple(e for e in term.fields if e is not expression),
                )
                if left.expressions or left.fields:
                    changed = (*terms[:position], left, *terms[position + 1 :])
                    text = expression_text(expression)
                    words = Message("remove node affinity {text}", text=text)
                    yield Step(field, text, "", words, RULE_SIZE, partial(_replaced, node_terms=changed))
    text = " or ".join(term_texts(terms))
    count = max((len(term.expressions) + len(term.fields) for term in terms), default=1)
    yield Step(
        field,
        text,
        "",
        Message("remove node affinity {text}", text=text),
        RULE_SIZE * count,
        partial(_replaced, node_terms=None),
    )


def _taint_options(state: ClusterState, shape: Shape, rows: Rows) -> Iterator[Step]:
    """Yield steps, each of which adds the tolerations that are missing for one set of taints.

    Smaller sets come first; of sets of equal size, the one that more nodes have.
    """
    ids, counts = np.unique(state.columns.field("taint_set")[rows], return_counts=True)
    nodes: dict[tuple[Taint, ...], int] = {}
    for taint_set, count in zip(ids.tolist(), counts.tolist(), strict=True):
        hard = (taint for taint in state.taint_sets.values[taint_set] if taint.effect in HARD_EFFECTS)
        met = tuple(dict.fromkeys(taint for taint in hard if not tolerates(shape.tolerations, taint)))
        if met and not any(taint.key in CONDITION_TAINTS for taint in met):
            nodes[met] = nodes.get(met, 0) + count
    for met in sorted(nodes, key=lambda met: (len(met), -nodes[met], _taints_text(met))):
        added = tuple(Toleration(t.key, "Equal" if t.value else "Exists", t.value, t.effect) for t in met)
        text, apply = _taints_text(met), partial(_tolerating, added=added)
        yield Step("spec.tolerations", "", text, Message("tolerate {text}", text=text), RULE_SIZE * len(met), apply)


def _taints_text(taints: tuple[Taint, ...]) -> str:
    return ", ".join(f"{t.key}{f'={t.value}' if t.value else ''}:{t.effect}" for t in taints)


def _tolerating(shape: Shape, added: tuple[Toleration, ...]) -> Shape:
    return msgspec.structs.replace(shape, tolerations=shape.tolerations + added)


# -- neighbours -----------------------------------------------------------------------------------------------------


def _neighbour_options(name: str, field: str, shape: Shape, rows: Rows) -> Iterator[Step]:
    terms: tuple[PodTerm, ...] = getattr(shape, name)
    yield from _drops(
        field,
        field.rpartition(".")[2],
        [neighbours_text(term) for term in terms],
        lambda positions: partial(_without, name=name, positions=positions),
        joined="; ",
    )


def neighbours_text(term: PodTerm) -> str:
    meant = () if term.selector is None else term.selector.expressions
    pods = " and ".join(expression_text(expression) for expression in meant)
    return f"{pods} over {term.topology_key}" if pods else f"over {term.topology_key}"


def _spread_options(shape: Shape, rows: Rows) -> Iterator[Step]:
    hard = [position for position, constraint in enumerate(shape.spread) if constraint.hard]
    for position in hard:
        field = f"spec.topologySpreadConstraints[{position}].whenUnsatisfiable"
        words = Message("spread over {key} DoNotSchedule -> ScheduleAnyway", key=shape.spread[position].topology_key)
        apply = partial(_soft, positions=frozenset({position}))
        yield Step(field, "DoNotSchedule", "ScheduleAnyway", words, RULE_SIZE, apply)


def _soft(shape: Shape, positions: frozenset[int]) -> Shape:
    spread = tuple(
        msgspec.structs.replace(constraint, hard=False) if position in positions else constraint
        for position, constraint in enumerate(shape.spread)
    )
    return msgspec.structs.replace(shape, spread=spread)


def _port_options(shape: Shape, rows: Rows) -> Iterator[Step]:
    def text(port: HostPort) -> str:
        return f"{port.port}/{port.protocol}"

    yield from _drops(
        "spec.containers.ports.hostPort",
        Message("host port"),
        [text(port) for port in shape.host_ports],
        lambda positions: partial(_without, name="host_ports", positions=positions),
    )


# -- GPUs and zones -------------------------------------------------------------------------------------------------


def _with_models(shape: Shape, models: tuple[str, ...]) -> Shape:
    assert shape.gpu is not None
    return msgspec.structs.replace(shape, gpu=msgspec.structs.replace(shape.gpu, models=models))


class _Models:
    """Relaxation of the accepted GPU models: one step adds the other models with which the pod would fit."""

    loosest: Apply = staticmethod(partial(_with_models, models=()))

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def steps(self, shape: Shape, fits: Fits, rows: Rows) -> Iterator[Step]:
        assert shape.gpu is not None
        asked = shape.gpu.models
        ids, counts = np.unique(self._state.columns.field("card_model")[:, rows], return_counts=True)
        models = self._state.models.values
        found = sorted(zip((-counts).tolist(), (models[position] for position in ids.tolist()), strict=True))
        would_do = [
            model
            for _, model in found[:MOST_OPTIONS]
            if model_tokens(model) and "|" not in model and fits(_with_models(shape, (*asked, model)), rows).size
        ]
        text, to = "|".join(asked), "|".join((*asked, *would_do))
        if would_do:
            apply = partial(_with_models, models=(*asked, *would_do))
            yield Step(
                GPU_MODEL,
                text,
                to,
                Message("{field} {was} -> {now}", field="gpu-model", was=text, now=to),
                RULE_SIZE,
                apply,
            )
        elif fits(self.loosest(shape), rows).size:
            yield Step(
                GPU_MODEL,
                text,
                "",
                Message("remove {field} {text}", field="gpu-model", text=text),
                2 * RULE_SIZE,
                self.loosest,
            )


def _zone_choices(shape: Shape) -> Iterator[Relaxation]:
    wish = shape.numa or NumaDemand()
    if wish.aware is not False:
        asked = "" if wish.aware is None else "true"
        words = (
            Message("{field} {was} -> {now}", field="topology-awareness", was="true", now="false")
            if asked
            else Message("set topology-awareness to false")
        )
        yield _single(Step(AWARENESS[0], asked, "false", words, RULE_SIZE, partial(_with_numa, aware=False)))
    if wish.cpu_policy not in SHARING:
        for policy in ("numa", "none"):
            words = Message("{field} {was} -> {now}", field="cpu-policy", was=wish.cpu_policy, now=policy)
            apply = partial(_with_numa, cpu_policy=policy)
            yield _single(Step(CPU_POLICY[0], wish.cpu_policy, policy, words, RULE_SIZE, apply))


def _with_numa(shape: Shape, **changes: Any) -> Shape:
    return msgspec.structs.replace(shape, numa=msgspec.structs.replace(shape.numa or NumaDemand(), **changes))


def _single(step: Step) -> FieldOptions:
    return FieldOptions(step.apply, lambda shape, rows: (step,))
