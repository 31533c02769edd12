"""The policies that ship with the product.

A policy is data: ordered plugins, weights, parameters and a tie rule. Filters come first, the cheapest and most
selective ones in front; `numa-fit` precedes `gpu-fit`, so that GPUs are selected within zones that are already
selected. Baselines from the literature are ordinary policies.
"""

from __future__ import annotations

from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties

_FILTERS = (
    PluginUse("priority-sort"),
    PluginUse("node-ready"),
    PluginUse("isa-match", weight=100),
    PluginUse("taints", weight=3),
    PluginUse("node-affinity", weight=2),
    PluginUse("volumes"),
    PluginUse("devices"),
    PluginUse("resource-fit"),
    PluginUse("numa-fit"),
    PluginUse("gpu-fit"),
    PluginUse("host-ports"),
    PluginUse("pod-affinity", weight=2),
    PluginUse("topology-spread", weight=2),
)
# Plugins for a cluster shared by teams: gang scheduling, quotas, preemption.
_SHARED = (PluginUse("quota"), PluginUse("preemption"), PluginUse("gang"))
# First-fit and random use feasibility only, so plugins that both filter and score get weight 0.
_FILTERS_ONLY = tuple(PluginUse(use.name, weight=0) for use in _FILTERS)


def _before(uses: tuple[PluginUse, ...], name: str, *added: PluginUse) -> tuple[PluginUse, ...]:
    """Insert plugins in front of the named one."""
    at = [use.name for use in uses].index(name)
    return (*uses[:at], *added, *uses[at:])


def _shared(uses: tuple[PluginUse, ...]) -> tuple[PluginUse, ...]:
    """Add the plugins of a shared cluster to filters; the queue sort keeps the members of a gang together."""
    return (PluginUse("gang-sort"), *(use for use in uses if use.name != "priority-sort"), *_SHARED)


_KUBE_FILTERS = tuple(
    PluginUse("gpu-fit", params={"check": "model"}) if use.name == "gpu-fit" else use
    for use in _FILTERS
    if use.name not in ("isa-match", "numa-fit")
)

_CASSINI_FILTERS = tuple(
    PluginUse("numa-fit", params={"pods": "whole-cpus"}) if use.name == "numa-fit" else use for use in _FILTERS
)
_ZONES = PluginUse("zone-count", weight=2)

_PUBLISHED_ISA = {"mode": "paper", "passes": "qemu-first"}
_ISAMATCH_FILTERS = tuple(
    PluginUse("isa-match", weight=100, params=_PUBLISHED_ISA) if use.name == "isa-match" else use for use in _FILTERS
)

BUILTIN: dict[str, PolicySpec] = {
    policy.name: policy
    for policy in (
        PolicySpec(
            "hetsched",
            (
                *_shared(_before(_FILTERS, "numa-fit", PluginUse("power"))),
                PluginUse("isa-scarcity", weight=2),
                PluginUse("class-split", weight=2, params={"strict": False}),
                PluginUse("least-allocated", params={"pods": "cpu"}),
                PluginUse("nash-gain", params={"full": 0.1, "pods": "cpu"}),
                PluginUse("gpu-headroom", weight=20, params={"need": "capacity", "tightness": 0.001}),
                PluginUse("gpu-scarcity", weight=80, params={"need": "capacity", "rarity": 1.0, "reserve": 1.5}),
                _ZONES,
            ),
            description="The default for a mixed fleet: every hard rule, scarce ISAs and cards spared, even use.",
        ),
        PolicySpec(
            "default-kube",
            (*_KUBE_FILTERS, PluginUse("least-allocated"), PluginUse("balanced-allocation")),
            description="kube-scheduler's default filters and scores: blind to ISA and zones, counts cards by model.",
        ),
        PolicySpec(
            "isamatch",
            (
                *_ISAMATCH_FILTERS,
                PluginUse("isa-affinity", params=_PUBLISHED_ISA),
                PluginUse("least-allocated"),
                PluginUse("balanced-allocation"),
            ),
            description="ISAMatch as published: QEMU, then ARCH, by affinity, shared ISA, use; others by the default.",
        ),
        PolicySpec(
            "ihep",
            (*_FILTERS, PluginUse("ihep")),
            description="IHEP as published: good, tightly fitting cards to GPU pods; CPU pods to CPU nodes first.",
        ),
        PolicySpec(
            "split-clusters",
            (
                *_KUBE_FILTERS,
                PluginUse("class-split"),
                PluginUse("least-allocated"),
                PluginUse("balanced-allocation"),
            ),
            description="kube-scheduler's default on a fleet split in two: CPU pods never run on GPU nodes.",
        ),
        PolicySpec(
            "cassini",
            (*_CASSINI_FILTERS, PluginUse("least-allocated"), PluginUse("balanced-allocation"), _ZONES),
            description="cassini as published: every pod with whole CPUs gets zones with real room, few of them.",
        ),
        PolicySpec(
            "mbcgt",
            (*_FILTERS, PluginUse("measured-fit"), PluginUse("mbcgt")),
            description="MBCGT as published: the product of all nodes' balance over four measured resources.",
        ),
        PolicySpec(
            "mbcgt-spread",
            (
                *_FILTERS,
                PluginUse("measured-fit"),
                PluginUse("nash-gain", params={"full": 0.1}),
                PluginUse("least-allocated", params={"use": "measured"}),
            ),
            description="MBCGT blended with an even load: balanced over four resources, and few nodes left idle.",
        ),
        PolicySpec(
            "dynamic",
            (
                *_KUBE_FILTERS,
                PluginUse("least-allocated", params={"use": "measured"}),
                PluginUse("balanced-allocation", params={"use": "measured", "form": "difference"}),
            ),
            description="MBCGT's rival: the least and most evenly loaded node by measured CPU and memory.",
        ),
        PolicySpec("first-fit", _FILTERS_ONLY, description="The first feasible node by name."),
        PolicySpec(
            "best-fit",
            (*_FILTERS_ONLY, PluginUse("best-fit")),
            description="The feasible node with the least CPU and GPU left over after placement.",
        ),
        PolicySpec(
            "dot-product",
            (*_FILTERS_ONLY, PluginUse("dot-product")),
            description="The openb study's dot product: the node whose free capacity is least in line with the pod.",
        ),
        PolicySpec(
            "gpu-packing",
            (*_FILTERS_ONLY, PluginUse("gpu-packing")),
            description="The openb study's GPU packing: shared cards first, then used nodes, then fresh ones.",
        ),
        PolicySpec(
            "gpu-clustering",
            (*_FILTERS_ONLY, PluginUse("gpu-clustering")),
            description="The openb study's GPU clustering: pods that ask for alike cards together.",
        ),
        PolicySpec(
            "hetsched-gpu",
            (
                *_shared(_before(_FILTERS, "gpu-fit", PluginUse("gpu-gradient"))),
                PluginUse("gpu-headroom"),
                PluginUse("gpu-scarcity", weight=3, params={"rarity": 0.33}),
            ),
            description="GPUs come first: fewest fragments, CPU kept beside free cards, scarce models spared.",
        ),
        PolicySpec(
            "fgd",
            _before(_FILTERS_ONLY, "gpu-fit", PluginUse("fgd")),
            description="FGD as published: the placement that fragments the GPUs least for the workload's mix.",
        ),
        PolicySpec(
            "binpack",
            (
                *_shared(_FILTERS),
                PluginUse("binpack", params={"resources": {"cpu": 1, "memory": 1, "nvidia.com/gpu": 2}}),
            ),
            description="Fill nodes up, cards first, along a straight line.",
        ),
        PolicySpec(
            "spread",
            (*_shared(_FILTERS), PluginUse("least-allocated")),
            description="The feasible node with the most left over.",
        ),
        PolicySpec(
            "random", _FILTERS_ONLY, Ties(by="random", seed=1), description="Any feasible node; the seed repeats a run."
        ),
    )
}
DEFAULT = "hetsched"
