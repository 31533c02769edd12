"""`hetsched crds`: the CustomResourceDefinitions of this version, for `kubectl apply`."""

from __future__ import annotations

from hetsched.adapters import assets


def crds() -> None:
    """Print the CustomResourceDefinitions NodeGpu, NodeUsage and SchedulingPolicy as YAML."""
    for file in sorted(assets.CRDS.glob("*.yaml")):
        print(f"---\n{file.read_text().strip()}")
