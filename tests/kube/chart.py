"""The Helm chart, rendered by helm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .control_plane import find

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "hetsched"
PRODUCTION = CHART / "values-production.yaml"
# A Deployment for each process with existing servers, and all rights.
DISTRIBUTED = ("layout=distributed", "mode=active", "existingSecret=hetsched", "discovery.enabled=true")
Json = dict[str, Any]


def helm(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    program = find("helm")
    assert program is not None
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, **options)


@cache
def rendered(*values: str, production: bool = False) -> list[Json]:
    """Return the objects of a release `live` in the namespace `hetsched`; `production` adds values-production.yaml."""
    sets = [word for value in values for word in ("--set", value)]
    files = [f"--values={PRODUCTION}"] if production else []
    done = helm("template", "live", str(CHART), "--namespace=hetsched", *files, *sets)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of(kind: str, *values: str, production: bool = False) -> dict[str, Json]:
    """Return the objects of a kind by name."""
    found = rendered(*values, production=production)
    return {item["metadata"]["name"]: item for item in found if item["kind"] == kind}


def pods(*values: str, production: bool = False) -> Iterator[tuple[str, Json]]:
    """Yield the pod templates by process."""
    for item in rendered(*values, production=production):
        if item["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = item["spec"]["template"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template
        elif item["kind"] == "Pod":
            yield item["metadata"]["labels"]["app.kubernetes.io/component"], item
