"""A pod's demands from hetsched's labels and annotations.

An invalid value must not reject the whole file and must not be treated as absent. If a demand can be stated in several
places, the first place that has a value is used. An invalid value there is a `Problem` of that pod (verdict
*misconfigured*); later places are not used instead. Numbers are plain decimal integers. GPU annotations without a
number of GPUs request one GPU; if a GPU annotation is invalid, only the container limits are used. A pod whose node
selector requires one architecture has a native demand for the base ISA of this architecture, which every node with that
label has by definition.
Source: the public contract, "What a pod may ask for". As in the openb trace, `hetsched.io/gpu-model-match: exact`
compares whole model names instead of prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from json import JSONDecodeError

from hetsched import isa
from hetsched.contracts.booleans import BOOLEANS
from hetsched.contracts.errors import InputError, Problem, with_hint
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.cards import model_tokens
from hetsched.contracts.objects.node_constraints import NodeTerm
from hetsched.contracts.objects.workload import GpuDemand, IsaDemand, NumaDemand
from hetsched.contracts.remedies import valid_name
from hetsched.contracts.units import GPU_RESOURCES, parse_amount

from ..plain_values import read_json
from . import keys
from .fields import is_dns_label, is_qualified_name

Texts = Mapping[str, str]
Problems = list[Problem]

MOST_CARDS = 1_000_000
MOST_WATTS = 1_000_000
CPU_POLICIES = ("none", "exclusive", "immovable", "numa")
AWARENESS_VALUES = ("true", "false")
_OF_CRANE = {keys.AWARENESS[0]: tuple(BOOLEANS), keys.CPU_POLICY[0]: CPU_POLICIES}
ARCH_BASE = {"amd64": "amd64", "arm64": "arm64", "riscv64": "rv64i"}

_DIGITS = re.compile(r"[0-9]{1,12}", re.ASCII)
_PEAKS = re.compile(r"peaks=([01][0-9]|2[0-4])-([01][0-9]|2[0-4])", re.ASCII)


# -- instruction sets ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def requirement_problem(text: str) -> Problem | None:
    """Return the problem of an ISA requirement, or None for a valid requirement; the caller sets `Problem.field`."""
    try:
        isa.parse(text, source="pod-label")
    except InputError as error:
        return Problem(error.code, "", error.advice)
    return None


def isa_demand(labels: Texts, annotations: Texts, fixed_arch: str, problems: Problems) -> IsaDemand | None:
    """Read the native, emulated and cross demands; `fixed_arch` is the only architecture that the selectors allow."""
    native = source = ""
    for kind, texts, key in (
        ("annotation", annotations, keys.ISA),
        ("label", labels, keys.ISA),
        ("label", labels, keys.ARCH),
    ):
        if key in texts:
            native, source = _requirement(texts, key, problems), f"{kind} {key}"
            break
    else:
        if fixed_arch in ARCH_BASE:
            native, source = ARCH_BASE[fixed_arch], keys.KUBERNETES_ARCH
    emulated, cross, qemu = (
        _requirement(texts, key, problems) if key in texts else ""
        for texts, key in ((annotations, keys.EMULATED_ISA), (annotations, keys.CROSS_ISA), (labels, keys.QEMU))
    )
    if not (native or emulated or cross or qemu):
        return None
    return IsaDemand(native, emulated, cross, qemu, source if native else "")


def _requirement(texts: Texts, key: str, problems: Problems) -> str:
    text = isa.published_isa(texts[key]).strip()
    problem = requirement_problem(text)
    if problem is None:
        return text
    problems.append(Problem(problem.code, key, problem.message))
    return ""


def fixed_arch(node_selector: tuple[tuple[str, str], ...], terms: tuple[NodeTerm, ...] | None) -> str:
    """Return the only `kubernetes.io/arch` that a pod's required selectors allow, or "" if they allow several."""
    for key, value in node_selector:
        if key == keys.KUBERNETES_ARCH:
            return value
    allowed: set[str] = set()
    for term in terms or ():
        values = [e.values for e in term.expressions if e.key == keys.KUBERNETES_ARCH and e.operator == "In"]
        if not values:
            return ""
        allowed.update(*values)
    return allowed.pop() if len(allowed) == 1 else ""


# -- GPUs ------------------------------------------------------------------------------------------------------------


def gpu_demand(annotations: Texts, requests: tuple[tuple[str, int], ...], problems: Problems) -> GpuDemand | None:
    """Read the number of GPUs, their models and the share of one GPU."""
    found: Problems = []
    by_resource = {name: amount for name, amount in requests if name in GPU_RESOURCES and amount}
    if len(by_resource) > 1:
        message = Message("GPUs of two vendors in one pod are not supported")
        found.append(Problem("FeatureNotSupported", max(by_resource), message))
    by_limits = sum(by_resource.values())
    number_key = next((key for key in keys.GPU_NUMBER if key in annotations), "")
    stated = number(annotations, number_key, found, "GpuNumberInvalid", 0, MOST_CARDS) if number_key else None
    if stated is not None and by_limits and stated != by_limits:
        message = Message(
            "the annotation requests {n} GPUs, but the container limits request {m}", n=stated, m=by_limits
        )
        found.append(Problem("GpuNumberContradiction", number_key, message))
    milli = number(annotations, keys.GPU_MILLI, found, "GpuMilliInvalid", 1, 1000)
    memory = number(annotations, keys.GPU_MEMORY, found, "GpuMemoryInvalid", 0, 2**40)
    cores = number(annotations, keys.GPU_CORE, found, "GpuCoreInvalid", 0, 2**31)
    models = _models(annotations, found)
    match = annotations.get(keys.GPU_MODEL_MATCH, "prefix").strip()
    if match not in ("prefix", "exact"):
        message = Message("the value must be prefix or exact, not {value}", value=repr(match[:40]))
        found.append(Problem("GpuModelInvalid", keys.GPU_MODEL_MATCH, message))
    if stated is not None:
        count = stated
    else:
        wished = any(key in annotations for key in (keys.GPU_MILLI, keys.GPU_MEMORY, keys.GPU_CORE, keys.GPU_MODEL))
        count = by_limits or int(wished)
    if count > 1 and milli is not None and milli < 1000:
        message = Message("only a single GPU can be shared, but {n} GPUs are requested", n=count)
        found.append(Problem("GpuMilliWithManyCards", keys.GPU_MILLI, message))
    problems.extend(found)
    vendor = next(iter(by_resource)).split(".", 1)[0] if len(by_resource) == 1 else ""
    if found:
        return GpuDemand(by_limits, vendor=vendor) if by_limits else None
    if not count:
        return None
    return GpuDemand(
        count=count,
        milli=1000 if milli is None else milli,
        memory_mib=memory or 0,
        cores=cores or 0,
        models=models,
        exact_models=match == "exact" and bool(models),
        vendor=vendor,
    )


def number(annotations: Texts, key: str, problems: Problems, code: str, least: int, most: int) -> int | None:
    if key not in annotations:
        return None
    text = annotations[key].strip()
    if _DIGITS.fullmatch(text) and least <= int(text) <= most:
        return int(text)
    wrong = repr(text[:40])
    message = Message(
        "the value must be a whole number from {low} to {high}, not {value}", low=least, high=most, value=wrong
    )
    problems.append(Problem(code, key, message))
    return None


def _models(annotations: Texts, problems: Problems) -> tuple[str, ...]:
    if keys.GPU_MODEL not in annotations:
        return ()
    terms = tuple(term.strip() for term in annotations[keys.GPU_MODEL].split("|"))
    wrong = next((term for term in terms if not model_tokens(term)), None)
    if wrong is None:
        return terms
    message = Message("{text} is not a valid GPU model", text=repr(wrong[:40]))
    problems.append(Problem("GpuModelInvalid", keys.GPU_MODEL, with_hint(message, "Write models such as A100|H100")))
    return ()


# -- NUMA, load, gang, policy ------------------------------------------------------------------------------------------


def numa_demand(annotations: Texts, problems: Problems) -> NumaDemand | None:
    """Read topology awareness and the CPU policy; both crane's and hetsched's keys may be set if they agree.

    As in crane, a value that crane does not know is treated as absent (gocrane/crane-scheduler `IsPodAwareOfTopology`,
    `GetPodCPUPolicy`); crane reads awareness as a Go boolean.
    """
    known = {key: value for key, value in annotations.items() if not unknown_to_crane(key, value)}
    if keys.AWARENESS[0] in known:
        known[keys.AWARENESS[0]] = "true" if BOOLEANS[known[keys.AWARENESS[0]].strip()] else "false"
    awareness = _same(known, keys.AWARENESS, AWARENESS_VALUES, "TopologyAwarenessInvalid", problems)
    policy = _same(known, keys.CPU_POLICY, CPU_POLICIES, "CpuPolicyInvalid", problems)
    if not awareness and not policy:
        return None
    return NumaDemand({"true": True, "false": False}.get(awareness), policy or "none")


def unknown_to_crane(key: str, value: str) -> bool:
    """Return whether crane replaces this value of one of its annotations with its default."""
    allowed = _OF_CRANE.get(key)
    return allowed is not None and value.strip() not in allowed


def _same(annotations: Texts, family: tuple[str, str], allowed: tuple[str, ...], code: str, problems: Problems) -> str:
    stated = {key: annotations[key].strip() for key in family if key in annotations}
    for key, value in stated.items():
        if value not in allowed:
            names = joined(", ", allowed)
            message = Message("the value must be one of {names}, not {value}", names=names, value=repr(value[:40]))
            problems.append(Problem(code, key, message))
            return ""
    if len(set(stated.values())) > 1:
        values = joined(", ", [f"{key} {value}" for key, value in stated.items()])
        message = Message("{names} contradict each other", names=values)
        problems.append(Problem("AnnotationContradiction", family[1], message))
        return ""
    return next(iter(stated.values()), "")


def load_profile(annotations: Texts, problems: Problems) -> str:
    """Read the load profile: `busy`, `idle` or the peak hours."""
    profile = annotations.get(keys.LOAD_PROFILE, "").strip()
    if keys.LOAD_PROFILE not in annotations or profile in ("busy", "idle") or _PEAKS.fullmatch(profile):
        return profile
    message = Message("the value must be busy, idle or peaks=HH-HH, not {text}", text=repr(profile[:40]))
    problems.append(Problem("LoadProfileInvalid", keys.LOAD_PROFILE, message))
    return ""


def expected_usage(annotations: Texts, problems: Problems) -> tuple[tuple[str, int], ...]:
    """Read the usage that the pod expects, by resource."""
    if keys.EXPECTED_USAGE not in annotations:
        return ()
    try:
        stated = read_json(annotations[keys.EXPECTED_USAGE])
        if not isinstance(stated, dict) or not all(is_qualified_name(name) for name in stated):
            raise InputError("ExpectedUsageInvalid", "the value must be a JSON object of resource quantities")
        return tuple(sorted((name, parse_amount(name, quantity)) for name, quantity in stated.items()))
    except JSONDecodeError as error:
        message = Message("the text is not valid JSON: {text}", text=error.msg)
        problems.append(Problem("ExpectedUsageInvalid", keys.EXPECTED_USAGE, message))
    except InputError as error:
        problems.append(Problem("ExpectedUsageInvalid", keys.EXPECTED_USAGE, error.message))
    return ()


def expected_watts(annotations: Texts, problems: Problems) -> int | None:
    """Read the power in watts that the pod expects to draw."""
    return number(annotations, keys.EXPECTED_WATTS, problems, "ExpectedWattsInvalid", 0, MOST_WATTS)


def policy_choice(annotations: Texts, scheduler_name: str, problems: Problems) -> tuple[str, str]:
    """Return the policy that the pod names and the rule by which it names it, or two empty strings if it names none."""
    if keys.POLICY in annotations:
        policy, rule = annotations[keys.POLICY].strip(), "annotation"
    elif scheduler_name.startswith(f"{keys.SCHEDULER}-"):
        policy, rule = scheduler_name.removeprefix(f"{keys.SCHEDULER}-"), "scheduler-name"
    else:
        return "", ""
    if is_dns_label(policy):
        return policy, rule
    field = keys.POLICY if rule == "annotation" else "spec.schedulerName"
    message = Message("{text} is not a valid policy name", text=repr(policy[:80]))
    problems.append(Problem("PolicyNameInvalid", field, with_hint(message, valid_name(policy, label=True))))
    return "", ""
