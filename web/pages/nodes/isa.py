"""The ISA tab of a node: its extensions, their sources, and the pending pods that need them.

The sources of an extension are all sources whose reports contain or imply it. For the ISA requests of pending pods, the
tab shows whether the node runs them and which extensions are missing; for each extension, it shows the number of
pending pods that need it. Extensions are grouped by purpose: the first matching pattern selects the group, and a name
without a match is in the group *others*. Names are those of `hetsched.isa`: RISC-V extensions, Linux flag names for x86
and Arm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.facts import FactStatement
from hetsched.contracts.objects.workload import IsaDemand
from hetsched.engine.isa.isa_fit import SECOND, refusal_of, run_on
from hetsched.engine.isa.isa_strings import required_isa
from hetsched.inventory.models import Node
from hetsched.isa import parse
from hetsched.placement.lifecycle import QUEUED
from hetsched.placement.models import Pod, Reservation
from web.api.nodes import facts

MOST_WAITING = 500
# Lowest level of each architecture. Every machine has its extensions, so the demand of pending pods for them is not
# counted.
_FLOORS = {"riscv": "rv64gc", "x86": "x86-64-v1", "arm": "armv8.0-a"}
_QUEUED = sorted(state.value for state in QUEUED)
Context = dict[str, Any]
_VECTOR, _CRYPTO, _BITS = _("vector"), _("cryptography"), _("bit manipulation")
_FLOAT, _MEMORY, _OTHERS = _("floating point"), _("memory and atomics"), _("other extensions")
_PATTERNS = {
    "riscv": (
        (_("base and compressed instructions"), r"[iemcg]|zc.*|zm.*|zicsr|zifencei|zicntr|zihpm"),
        (_FLOAT, r"[fdq]|z[fdhq].*"),
        (_VECTOR, r"v|zv(?!k).*"),
        (_BITS, r"b|zb.*"),
        (_CRYPTO, r"zk.*|zvk.*"),
        (_MEMORY, r"a|za.*|zi.*|ztso"),
        (_("privileged"), r"s.*|h"),
    ),
    "x86": (
        (_CRYPTO, r"aes|vaes|sha.*|pclmul.*|vpclmul.*|gfni|rdrand|rdseed|sm[34]"),
        ("AVX-512", r"avx512.*|avx10.*"),
        ("AMX", r"amx.*"),
        ("AVX", r"avx.*|fma.*|f16c|xop"),
        ("SSE", r"s?sse.*|pni|mmx.*|3dnow.*"),
        (_BITS, r"bmi.*|popcnt|lzcnt|abm|adx|tbm|movbe"),
    ),
    "arm": (
        ("SVE", r"sve.*|sme.*"),
        (_CRYPTO, r"aes|pmull|sha.*|sm[34]|rng.*"),
        (_FLOAT, r"fp.*|asimd.*|bf16|i8mm|fcma|jscvt|frint|flagm.*"),
        (_MEMORY, r"atomics|.*lrcpc|uscat|dcpop|dcpodp|mops"),
    ),
}  # fmt: skip
_COMPILED = {arch: [(label, re.compile(text)) for label, text in rows] for arch, rows in _PATTERNS.items()}


def instruction_set(node: Node, reservations: list[Reservation]) -> Context:
    """Return the context of the ISA tab."""
    shown = facts.isa_facts(node, reservations, timezone.now())
    said = _current_claims(node)
    needs, by_extension = _pending_demands(node)
    sources = {name: [statement for statement, known in said if name in known] for name in shown.extensions}
    groups = [
        (label, [{"name": name, "needed": by_extension.get(name, 0), "by": sources[name]} for name in names])
        for label, names in grouped(shown.family, shown.extensions)
    ]
    demanded = any(by_extension[name] for name in shown.extensions)
    claims = [statement for statement, _ in said]
    return {"isa": shown, "groups": groups, "demanded": demanded, "needs": needs, "said": claims}


def _current_claims(node: Node) -> list[tuple[FactStatement, frozenset[str]]]:
    """Return the current reports of the node's ISA, each with the extensions that it contains or implies."""
    row = facts.stated(node)
    found = []
    for item in row.claims.get("isa", ()) if row is not None else ():
        if item.current:
            try:
                found.append((item, frozenset(parse(item.text, source="node-label").extensions)))
            except InputError:
                found.append((item, frozenset()))
    return found


def _pending_demands(node: Node) -> tuple[list[Context], Counter[str]]:
    """Return the ISA requests of pending pods, the most frequent first, and the number of pods per extension."""
    rows = Pod.objects.filter(cluster=node.cluster, state__in=_QUEUED).order_by("-id")
    demands: Counter[IsaDemand] = Counter()
    first: dict[IsaDemand, Pod] = {}
    for pod in rows.only("spec", "namespace", "name", "workload_id")[:MOST_WAITING]:
        demand = pod.spec.shape.isa
        if demand is not None and demand.is_stated:
            demands[demand] += 1
            first.setdefault(demand, pod)
    by_extension: Counter[str] = Counter()
    found = []
    for demand, count in demands.most_common():
        text = demand.native or demand.emulated or demand.cross or demand.qemu
        run = run_on("lattice", "native-first", demand, node.report.isa)
        with suppress(InputError):  # some texts are valid only in the comparison mode `paper`
            required = required_isa(text)
            floor = required_isa(_FLOORS[required.arch]).extensions if required.arch in _FLOORS else ()
            by_extension.update(dict.fromkeys(set(required.extensions) - set(floor), count))
        refusal = None if run.rank >= SECOND else refusal_of("lattice", "native-first", demand, node.report.isa)
        found.append({"text": text, "pods": count, "like": first[demand], "mode": run.mode, "refusal": refusal})
    return found, by_extension


def grouped(arch: str, extensions: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return the label and the sorted extensions of each group that is not empty, in display order."""
    groups: dict[str, list[str]] = {}
    patterns = _COMPILED.get(arch, [])
    order = [str(label) for label, _pattern in patterns] + [str(_OTHERS)]
    for name in sorted(extensions):
        found = next((label for label, pattern in patterns if pattern.fullmatch(name)), _OTHERS)
        groups.setdefault(str(found), []).append(name)
    return [(label, groups[label]) for label in dict.fromkeys(order) if label in groups]
