"""The policies that ship with the product.

A policy is data: ordered plugins, weights, parameters and a tie-breaking rule. Filters come first, starting with the
cheapest and most selective ones. `numa-fit` precedes `gpu-fit`, so that GPUs are selected within the selected zones.
Baselines from the literature are ordinary policies.
"""

from __future__ import annotations

from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties

_FILTERS = (
    PluginUse("priority-sort"),
    PluginUse("node-ready"),
    PluginUse("isa-match", weight=100),
    PluginUse("taints", weight=3),
    PluginUse("node-affinity", weight=2),
    PluginUse("declared-features"),
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
    """Return `uses` with the plugins `added` inserted before the plugin `name`."""
    at = [use.name for use in uses].index(name)
    return (*uses[:at], *added, *uses[at:])


def _shared(uses: tuple[PluginUse, ...]) -> tuple[PluginUse, ...]:
    """Return `uses` with the plugins of a shared cluster added; the queue sort keeps gang members together."""
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
            description="Default for mixed fleets: all filters, scarce ISAs and GPU models kept free, load spread.",
        ),
        PolicySpec(
            "default-kube",
            (
                *_KUBE_FILTERS,
                PluginUse("least-allocated"),
                PluginUse("balanced-allocation", params={"form": "change"}),
                PluginUse("image-locality"),
            ),
            description=(
                "kube-scheduler's default filters and scores: no ISA or NUMA checks; GPUs are counted by model."
            ),
        ),
        PolicySpec(
            "isamatch",
            (
                *_ISAMATCH_FILTERS,
                PluginUse("isa-affinity", params=_PUBLISHED_ISA),
                PluginUse("least-allocated"),
                PluginUse("balanced-allocation"),
            ),
            description=(
                "ISAMatch as published: ranks nodes by QEMU use, architecture, affinity, shared ISA and utilisation."
            ),
        ),
        PolicySpec(
            "ihep",
            (*_FILTERS, PluginUse("ihep")),
            description="IHEP as published: GPU pods get the best-fitting GPU; CPU pods prefer nodes without GPUs.",
        ),
        PolicySpec(
            "split-clusters",
            (
                *_KUBE_FILTERS,
                PluginUse("class-split"),
                PluginUse("least-allocated"),
                PluginUse("balanced-allocation"),
            ),
            description="kube-scheduler's defaults on two separate pools: CPU pods never run on GPU nodes.",
        ),
        PolicySpec(
            "cassini",
            (*_CASSINI_FILTERS, PluginUse("least-allocated"), PluginUse("balanced-allocation"), _ZONES),
            description=(
                "cassini as published: pods with whole-CPU requests are placed in as few NUMA zones as possible."
            ),
        ),
        PolicySpec(
            "mbcgt",
            (*_FILTERS, PluginUse("measured-fit"), PluginUse("mbcgt")),
            description=(
                "MBCGT as published: maximises the product of all nodes' utilities "
                "(how evenly a node uses four measured resources)."
            ),
        ),
        PolicySpec(
            "mbcgt-spread",
            (
                *_FILTERS,
                PluginUse("measured-fit"),
                PluginUse("nash-gain", params={"full": 0.1}),
                PluginUse("least-allocated", params={"use": "measured"}),
            ),
            description="MBCGT combined with load spreading: balances four resources and leaves few nodes idle.",
        ),
        PolicySpec(
            "dynamic",
            (
                *_KUBE_FILTERS,
                PluginUse("least-allocated", params={"use": "measured"}),
                PluginUse("balanced-allocation", params={"use": "measured", "form": "difference"}),
            ),
            description="MBCGT's baseline: the node with the lowest and most even measured use of CPU and memory.",
        ),
        PolicySpec("first-fit", _FILTERS_ONLY, description="The first feasible node by name."),
        PolicySpec(
            "best-fit",
            (*_FILTERS_ONLY, PluginUse("best-fit")),
            description="The feasible node with the least free CPU and GPU after placement.",
        ),
        PolicySpec(
            "dot-product",
            (*_FILTERS_ONLY, PluginUse("dot-product")),
            description=(
                "Dot product of the openb study: the node with the smallest dot product of free capacity and request."
            ),
        ),
        PolicySpec(
            "gpu-packing",
            (*_FILTERS_ONLY, PluginUse("gpu-packing")),
            description="GPU packing of the openb study: shared GPUs first, then nodes in use, then empty nodes.",
        ),
        PolicySpec(
            "gpu-clustering",
            (*_FILTERS_ONLY, PluginUse("gpu-clustering")),
            description="GPU clustering of the openb study: pods with equal GPU requests share nodes.",
        ),
        PolicySpec(
            "hetsched-gpu",
            (
                *_shared(_before(_FILTERS, "gpu-fit", PluginUse("gpu-gradient"))),
                PluginUse("gpu-headroom"),
                PluginUse("gpu-scarcity", weight=3, params={"rarity": 0.33}),
            ),
            description=(
                "Optimised for GPUs: little fragmentation, CPU kept available for free GPUs, "
                "scarce GPU models kept free."
            ),
        ),
        PolicySpec(
            "fgd",
            _before(_FILTERS_ONLY, "gpu-fit", PluginUse("fgd")),
            description="FGD as published: least GPU fragmentation for the current workload mix.",
        ),
        PolicySpec(
            "binpack",
            (
                *_shared(_FILTERS),
                PluginUse("binpack", params={"resources": {"cpu": 1, "memory": 1, "nvidia.com/gpu": 2}}),
            ),
            description="Fills nodes, GPUs first; the score grows linearly with utilisation.",
        ),
        PolicySpec(
            "spread",
            (*_shared(_FILTERS), PluginUse("least-allocated")),
            description="The feasible node with the most free capacity.",
        ),
        PolicySpec(
            "random",
            _FILTERS_ONLY,
            Ties(by="random", seed=1),
            description="A random feasible node; the seed makes a run repeatable.",
        ),
    )
}
DEFAULT = "hetsched"
