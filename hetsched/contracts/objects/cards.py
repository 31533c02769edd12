"""Table of accelerator models, matching of model names, and the whole GPUs of a node.

One GPU model has many names (`V100M32`, `Tesla-V100-SXM2-32GB`), A10 must never match A100, and a count of
`nvidia.com/gpu` is not always a count of GPUs. A name is lower-cased and split at spaces, `-` and `_`, and its leading
tokens `nvidia tesla geforce rtx amd instinct` are dropped. A term matches a GPU if the term's tokens are a prefix of
the GPU's tokens, or if the term is a name (id, alias or trace name) of the GPU's accelerator model. GPUs are read from
NodeGpu if it exists. Otherwise, an allocatable amount of N yields the GPUs 0..N-1 with the facts from
GPU-feature-discovery labels; time-slicing replicas of one GPU are merged, and MIG devices are omitted.
Source: `data/accelerators.json`; NVIDIA k8s-device-plugin, docs/gpu-feature-discovery; AMD node labeller.
Invariant: a fact without a label is None, even if the table contains a value for the model.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files

import msgspec

from ..units import GPU_RESOURCES
from .node_report import GpuCard, NodeReport
from .workload import GpuDemand

MAX_CARDS = 256
MAX_CARD_UUID = 120  # characters; the UUIDs of vendors have at most 40
_NOT_A_MODEL = frozenset({"nvidia", "tesla", "geforce", "rtx", "amd", "instinct"})
_CUT = re.compile(r"[\s_-]+")


class CardFacts(msgspec.Struct, frozen=True):
    """One row of the accelerator table; memory is the driver's value if known.

    `interconnect_gbs` is the sum of both directions.
    """

    id: str
    vendor: str
    memory_mib: int | None = None
    reported_memory_mib: int | None = None
    cores: int | None = None
    bandwidth_gbs: float | None = None
    boost_mhz: int | None = None
    fp32_tflops: float | None = None
    compute_capability: str | None = None
    interconnect_gbs: float | None = None
    aliases: tuple[str, ...] = ()

    @property
    def shown_memory_mib(self) -> int | None:
        return self.reported_memory_mib or self.memory_mib


class _AcceleratorTable(msgspec.Struct):
    accelerators: list[CardFacts]
    traces: dict[str, dict[str, str]]
    mig_profiles: dict[str, list[tuple[str, int, int, int] | str]]


@cache
def _table() -> _AcceleratorTable:
    return msgspec.json.decode(
        (files("hetsched.contracts") / "data" / "accelerators.json").read_bytes(), type=_AcceleratorTable
    )


@cache
def _by_name() -> dict[tuple[str, ...], CardFacts]:
    """Map every known name, split into tokens, to its accelerator."""
    named: dict[tuple[str, ...], CardFacts] = {}
    by_id = {facts.id: facts for facts in _table().accelerators}
    for names in _table().traces.values():
        named.update({model_tokens(name): by_id[target] for name, target in names.items()})
    for facts in by_id.values():
        named.update({model_tokens(name): facts for name in (*facts.aliases, facts.id)})
    return named


@lru_cache(maxsize=4096)
def model_tokens(name: str) -> tuple[str, ...]:
    """Split a model name into the tokens used for comparison; a name without tokens does not identify a model."""
    tokens = [token for token in _CUT.split(name.strip().lower()) if token]
    while tokens and tokens[0] in _NOT_A_MODEL:
        del tokens[0]
    return tuple(tokens)


def facts_of(model: str) -> CardFacts | None:
    """Return the table row for any name of a model, or None for an unknown name."""
    return _by_name().get(model_tokens(model))


def mig_profile(model: str, multiprocessors: int, memory_mib: int) -> str | None:
    """Return the MIG profile of an instance on a GPU of `model`, or None if no profile has about that size."""
    tokens = set(model_tokens(model))
    for card, profiles in _table().mig_profiles.items():
        if not tokens.issuperset(model_tokens(card)):
            continue
        for profile in profiles:
            if isinstance(profile, tuple):
                name, _, cores, about_mib = profile
                if cores == multiprocessors and abs(memory_mib - about_mib) * 20 <= about_mib:
                    return name
    return None


@lru_cache(maxsize=65536)
def model_matches(term: str, model: str) -> bool:
    """Return whether a GPU of `model` matches `term`."""
    wanted, offered = model_tokens(term), model_tokens(model)
    if not wanted or not offered:
        return False
    if offered[: len(wanted)] == wanted:
        return True
    named = _by_name().get(wanted)
    return named is not None and named is _by_name().get(offered)


def model_accepted(demand: GpuDemand, model: str) -> bool:
    """Return whether `demand` accepts a GPU of `model`; a demand that names no model accepts every model."""
    if not demand.models:
        return True
    if demand.exact_models:
        return model in demand.models
    return any(model_matches(term, model) for term in demand.models)


@lru_cache(maxsize=4096)
def vendor_of(model: str) -> str:
    """Return the vendor of a model, for example `nvidia`, or "" if its name and the table do not identify it."""
    facts = facts_of(model)
    if facts is not None:
        return facts.vendor
    words = set(_CUT.split(model.strip().lower()))
    if words & {"amd", "instinct"}:
        return "amd"
    return "nvidia" if words & (_NOT_A_MODEL - {"amd", "instinct"}) else ""


def card_from_table(index: int, model: str) -> GpuCard:
    """Return a GPU of which only index and model are known, with the properties of its model from the table."""
    facts = facts_of(model)
    if facts is None:
        return GpuCard(index=index, model=model, vendor=vendor_of(model))
    return GpuCard(
        index=index,
        model=model,
        vendor=facts.vendor,
        memory_mib=facts.shown_memory_mib,
        cores=facts.cores,
        fp32_tflops=facts.fp32_tflops,
        bandwidth_gbs=facts.bandwidth_gbs,
        clock_mhz=facts.boost_mhz,
    )


def cards_of(report: NodeReport) -> tuple[GpuCard, ...]:
    """Return the healthy whole GPUs that a node can allocate, by index."""
    if report.gpus is not None:
        return tuple(sorted((card for card in report.gpus if card.healthy), key=lambda card: card.index))
    cards: list[GpuCard] = []
    for resource in GPU_RESOURCES:
        amount = report.allocatable.get(resource, 0)
        if amount > 0:
            vendor = resource.split(".", 1)[0]
            cards.extend(_labelled(report.labels, vendor, amount, len(cards)))
    return tuple(cards[:MAX_CARDS])


def installed_cards(report: NodeReport) -> int:
    """Return the number of whole GPUs of a node, including unhealthy ones and those in maintenance."""
    return len(cards_of(report) if report.gpus is None else report.gpus)


def cards_in_maintenance(report: NodeReport) -> tuple[GpuCard, ...]:
    """Return the whole GPUs of a node that are in maintenance."""
    return tuple(card for card in report.gpus or () if card.maintenance)


def after_maintenance(card: GpuCard) -> GpuCard:
    """Return the GPU in the state that it has after its maintenance."""
    return msgspec.structs.replace(card, healthy=True, maintenance=False) if card.maintenance else card


def _labelled(labels: dict[str, str], vendor: str, amount: int, first: int) -> list[GpuCard]:
    if vendor == "amd":
        model, memory = labels.get("amd.com/gpu.product-name"), _rounded_gib(labels.get("amd.com/gpu.vram"))
    else:
        model, memory = labels.get("nvidia.com/gpu.product"), _whole(labels.get("nvidia.com/gpu.memory"))
        if model is not None and "-MIG-" in model:
            return []
        amount //= max(_whole(labels.get("nvidia.com/gpu.replicas")) or 1, 1)
        model = model and model.removesuffix("-SHARED")
    count = min(amount, MAX_CARDS)
    return [GpuCard(index=first + i, model=model, vendor=vendor, memory_mib=memory) for i in range(count)]


def _rounded_gib(text: str | None) -> int | None:
    """Return the smallest memory in MiB for which AMD's node labeller, which rounds to whole GiB, writes this label."""
    gib = _whole(text.removesuffix("G")) if text is not None else None
    return 1024 * gib - 512 if gib else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None
