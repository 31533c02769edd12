"""The compiled loop and the scheduling cycle give the same results."""

from __future__ import annotations

import random

import msgspec
import pytest

from hetsched.contracts.objects.policy import Ties
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from tests.builders import a_node, a_pod


def a_fleet(draw: random.Random, count: int):
    for number in range(count):
        node = a_node(f"n{number:03}").cpu(draw.choice([4, 8, 16])).memory(draw.choice(["8Gi", "32Gi"]))
        node = node.pods(draw.choice([6, 20]))
        if draw.random() < 0.5:
            model, memory = draw.choice([("T4", 15360), ("A100-SXM4-40GB", 40960), ("G2", None)])
            node = node.gpus(draw.choice([1, 2, 8]), model, memory)
        if draw.random() < 0.1:
            node = node.tainted("dedicated", "batch")
        if draw.random() < 0.1:
            node = node.offering("ephemeral-storage", "10Gi").using(cpu="1500m", memory="2Gi")
        yield node.arch(draw.choice(["amd64", "riscv64"]), draw.choice([None, None, "x86-64-v3"])).build()


def a_stream(draw: random.Random, count: int):
    shapes = []
    for _ in range(12):
        pod = a_pod().cpu(f"{draw.choice([0, 100, 500, 1500, 3000])}m").memory(draw.choice(["0", "64Mi", "1Gi", "3Gi"]))
        kind = draw.random()
        if kind < 0.25:
            pod = pod.gpu(1, milli=draw.choice([100, 300, 500]), memory_mib=draw.choice([0, 0, 4000]))
        elif kind < 0.5:
            pod = pod.gpu(draw.choice([1, 2, 4]), model=draw.choice(["", "T4"]))
        elif kind < 0.6:
            pod = pod.host_port(8080)
        elif kind < 0.7:
            pod = pod.away_from("kubernetes.io/hostname", app="x").labelled(app="x")
        elif kind < 0.8:
            pod = pod.expecting(cpu="50m")
        shapes.append(pod.build())
    for number in range(count):
        pod = draw.choice(shapes)
        if draw.random() < 0.2:
            pod = a_pod().cpu(f"{100 + number}m").build()
        yield msgspec.structs.replace(pod, name=f"p{number}")


@pytest.mark.parametrize("policy", ["hetsched", "best-fit", "first-fit", "random", "spread", "default-kube"])
@pytest.mark.parametrize("seed", range(4))
def test_every_pick_grant_and_total_is_the_same(policy, seed):
    draw = random.Random(seed)
    nodes, pods = list(a_fleet(draw, 25)), list(a_stream(draw, 150))
    spec = BUILTIN[policy]
    if policy == "random":
        spec = msgspec.structs.replace(spec, ties=Ties(by="random", seed=seed))
    compiled = compile_policy(spec, load_registry())
    single, batched = ClusterState(nodes), ClusterState(nodes)
    one_by_one = Scheduler(single, compiled)
    in_batches = BatchScheduler(Scheduler(batched, compiled), expected=10**9, shortest=1)
    expected = [one_by_one.schedule(pod) for pod in pods[:100]]
    actual = in_batches.schedule(pods[:60]) + in_batches.schedule(pods[60:100])
    # A pod leaves in between, as between two batches of a worker.
    removed = [outcome.pod.key for outcome in expected if outcome.node][::3]
    for key in removed:
        single.forget(key)
        batched.forget(key)
    expected += [one_by_one.schedule(pod) for pod in pods[100:]]
    actual += in_batches.schedule(pods[100:])
    for want, got in zip(expected, actual, strict=True):
        assert (got.pod.name, got.node, got.allocation, got.score) == (
            want.pod.name, want.node, want.allocation, want.score,
        )  # fmt: skip
    assert (single.columns.load == batched.columns.load).all()
    assert single.digest() == batched.digest()
    assert sum(outcome.node is not None for outcome in actual) > 20
