"""Run `hetsched` in this process, on a small cluster that all command tests use."""

import functools
import json
from pathlib import Path
from typing import Any

import typer.main
import typer.testing
from typer.testing import CliRunner, Result

from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.cli.main import app
from hetsched.contracts.objects.cluster import ClusterContent
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod

# Typer builds the tree of all commands at each call of a runner, which takes 50 ms.
command_tree = functools.cache(typer.main.get_command)
typer.testing._get_command = command_tree


def run(*arguments: str | Path | int, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, env=env)


def document(result: Result) -> dict[str, Any]:
    """Return the single JSON document on standard output."""
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def two_riscv_nodes() -> tuple[NodeBuilder, NodeBuilder, PodBuilder]:
    """Return two nodes: `plain` has no vector extension; `vector` has it, but a running pod leaves only 1 of its 4 CPUs
    free.
    """
    plain = a_node("plain").arch("riscv64", "rv64gc").cpu(4).memory("8Gi")
    vector = a_node("vector").arch("riscv64", "rv64gcv").cpu(4).memory("8Gi")
    return plain, vector, a_pod("old").cpu(3).memory("1Gi").running_on("vector")


def cluster_file(folder: Path, *parts: NodeBuilder | PodBuilder) -> Path:
    """Write a file with nodes and running pods, by default the two RISC-V nodes."""
    built = [part.build() for part in parts or two_riscv_nodes()]
    nodes = tuple(part for part in built if hasattr(part, "allocatable"))
    running = tuple(part for part in built if hasattr(part, "shape"))
    return _write(folder / "cluster.json", ClusterContent(nodes=nodes, running=running))


def workload_file(folder: Path, *pods: PodBuilder, name: str = "pods.json") -> Path:
    return _write(folder / name, ClusterContent(pending=tuple(pod.build() for pod in pods)))


def _write(path: Path, content: ClusterContent) -> Path:
    path.write_bytes(write_cluster(content))
    return path
