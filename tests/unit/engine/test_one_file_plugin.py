"""A plugin in one file works everywhere: registry, cycle, compiled loop, nearest fit and messages in both languages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.utils import translation

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.explain.nearest_fit import nearest_fit
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import PluginError, Registry
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import cluster
from web import translation as message_translation

WithPlugin = Callable[..., Registry]

# A busy pod needs a node of which at most `most` % of the CPU is requested, including its own request. The score is the
# free CPU.
CALM = '''
"""Keep busy pods off crowded nodes, and prefer nodes with free CPU."""

from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.params import Params
from hetsched.engine.explain.relaxations import RULE_SIZE, Step
from hetsched.engine.explain.rule_relaxations import FieldOptions
from hetsched.engine.framework.compiled_terms import CompiledTerm, FormulaInput, loop_function
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.scoring import INFEASIBLE
from hetsched.engine.framework.status import SKIP, Refusal

PROFILE = "hetsched.io/load-profile"


class CalmParams(Params, frozen=True):
    most: Annotated[int, msgspec.Meta(ge=0, le=100, title="Most", description="Requested CPU in percent.")] = 50


@loop_function
def _free_share(used, capacity):
    return 100.0 * max(capacity - used, 0) / max(capacity, 1)


@loop_function
def _score(total, weight, nodes, at, delta, extra, given, cards):
    capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    used = nodes.load[at.requested, nodes.first : nodes.last]
    for i in range(len(total)):
        total[i] += weight * _free_share(used[i] + delta[at.requested], capacity[i])


@loop_function
def _exclude(total, weight, nodes, at, delta, extra, given, cards):
    capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    used = nodes.load[at.requested, nodes.first : nodes.last]
    for i in range(len(total)):
        if (used[i] + delta[at.requested]) * 100 > given[0] * capacity[i]:
            total[i] = INFEASIBLE


def _score_input(plugin, request, state, cards):
    return FormulaInput(_score)


def _filter_input(plugin, request, state, cards):
    return SKIP if plugin.pre_filter(request, state) is SKIP else FormulaInput(_exclude, (plugin.params.most,))


def _profile(shape):
    return shape.load_profile


def _without_profile(shape):
    return msgspec.structs.replace(shape, load_profile="idle")


@plugin(
    "calm",
    summary="Keep busy pods off crowded nodes.",
    params=CalmParams,
    translations={
        "zh-hans": {
            "more than {n} % of the CPU would be requested, too much for a busy pod":
                "CPU 请求将超过 {n}%，忙碌的 Pod 放不下",
            "load-profile {was} -> {now}": "负载曲线 {was} -> {now}",
            "a node with at most {n} % of its CPU requested": "CPU 请求不超过 {n}% 的节点",
        }
    },
)
class Calm:
    compiled_term = CompiledTerm((_score,), _score_input)
    compiled_filter = CompiledTerm((_exclude,), _filter_input, key=_profile)

    def pre_filter(self, request, state):
        return None if request.shape.load_profile == "busy" else SKIP

    def filter(self, request, nodes):
        used = nodes.load("requested")[0] + request.shape.request("cpu")
        return used * 100 <= self.params.most * nodes.static("allocatable")[0]

    def refusals(self, request, nodes):
        template = "more than {n} % of the CPU would be requested, too much for a busy pod"
        message = Message(template, n=self.params.most)
        yield Refusal("TooCrowded", message, ("cpu",), resolvable=True), ~self.filter(request, nodes)

    def waits(self, request):
        return Message("a node with at most {n} % of its CPU requested", n=self.params.most)

    def relaxations(self, shape, state):
        if shape.load_profile == "busy":
            words = Message("load-profile {was} -> {now}", was="busy", now="idle")
            step = Step(PROFILE, "busy", "idle", words, RULE_SIZE, _without_profile)
            yield FieldOptions(step.apply, lambda shape, rows: (step,))

    def score(self, request, nodes):
        used = nodes.load("requested")[0] + request.shape.request("cpu")
        capacity = nodes.static("allocatable")[0]
        return 100.0 * np.maximum(capacity - used, 0) / np.maximum(capacity, 1)
'''


@pytest.fixture
def registry(with_plugin: WithPlugin) -> Registry:
    return with_plugin(CALM, "calm")


@pytest.fixture
def chinese() -> Iterator[None]:
    message_translation.reload_translations()
    with translation.override("zh-hans"):
        yield
    message_translation.reload_translations()


def calm(registry: Registry, **params: int) -> Policy:
    uses = (PluginUse("node-ready"), PluginUse("resource-fit"), PluginUse("calm", 2.0, dict(params)))
    return compile_policy(PolicySpec("calm", uses), registry)


def busy(name: str, cpu: str) -> PodSpec:
    return a_pod(name).cpu(cpu).shaped(load_profile="busy").build()


def test_cycle_filters_and_scores(registry: Registry) -> None:
    scheduler = Scheduler(cluster([a_node("a").cpu(8), a_node("b").cpu(16)]), calm(registry))
    # 4 of 8 is 50 %, 4 of 16 leaves 75 % free; 5 of 8 is more than 50 %, and 4 + 5 of 16 too.
    first = scheduler.schedule(busy("first", "4"))
    assert (first.node, first.score) == ("b", 75.0)
    assert scheduler.schedule(busy("second", "5")).node is None
    # An ordinary pod is not filtered: it leaves 3 of 8 (37.5 %) on a, 7 of 16 (43.75 %) on b.
    third = scheduler.schedule(a_pod("third").cpu("5").build())
    assert (third.node, third.score) == ("b", 43.75)


def test_compiled_loop_places_the_same_pods(registry: Registry) -> None:
    # A loop with fewer formulas takes less time to compile.
    few = Registry({name: registry[name] for name in ("node-ready", "resource-fit", "calm")})
    nodes = [a_node(f"n{number}").cpu(4 + 3 * number) for number in range(7)]
    pods = [
        busy(f"p{number}", f"{100 + 170 * (number % 9)}m")
        if number % 3
        else a_pod(f"p{number}").cpu(f"{250 * (number % 7)}m").build()
        for number in range(120)
    ]
    single, batched = Scheduler(cluster(nodes), calm(few)), Scheduler(cluster(nodes), calm(few))
    expected = [single.schedule(pod) for pod in pods]
    asked: list[str] = []
    by_itself = batched.schedule
    batched.schedule = lambda pod: (asked.append(pod.key), by_itself(pod))[1]  # type: ignore[method-assign]
    found = BatchScheduler(batched, expected=10**9, shortest=1).schedule(pods)
    assert [(each.node, each.score) for each in found] == [(each.node, each.score) for each in expected]
    assert asked == []
    assert single.state.digest() == batched.state.digest()
    refused = {pod.shape.load_profile for pod, each in zip(pods, found, strict=True) if each.node is None}
    assert refused == {"busy"}


def test_nearest_fit_relaxes_the_plugin_field(registry: Registry) -> None:
    scheduler = Scheduler(cluster([a_node("a").cpu(8)]), calm(registry))
    # 6 of 8 is 75 %: an idle pod fits, and so does a busy one with 4 CPUs. Half a request (0.5) is more than a third.
    fits = nearest_fit(scheduler, busy("pod", "6"))
    assert [(fit.change, fit.nodes) for fit in fits] == [
        ("cpu 6 -> 4", ("a",)),
        ("load-profile busy -> idle", ("a",)),
    ]


def test_plugin_messages_are_translated(registry: Registry, chinese: None) -> None:
    scheduler = Scheduler(cluster([a_node("a").cpu(8)]), calm(registry, most=25))
    diagnosis = diagnose(scheduler, busy("pod", "6"))
    english = "more than 25 % of the CPU would be requested, too much for a busy pod"
    assert [(reason.code, reason.message) for reason in diagnosis.reasons] == [("TooCrowded", english)]
    assert diagnosis.summary == f"default/pod never fits this cluster, not even empty: 0 of 1 nodes fit (1: {english})"
    assert message_translation.translate(diagnosis.summary) == (
        "default/pod 此集群即使为空也无法满足：1 个节点中有 0 个可行（1 个：CPU 请求将超过 25%，忙碌的 Pod 放不下）"
    )
    assert message_translation.translate(diagnosis.waits_for[0].text) == "CPU 请求不超过 25% 的节点"
    roomier = Scheduler(cluster([a_node("a").cpu(8)]), calm(registry))
    change = nearest_fit(roomier, busy("pod", "6"))[-1].change
    assert message_translation.translate(change) == "负载曲线 busy -> idle"


def test_plugin_messages_are_english_for_english_readers(registry: Registry, chinese: None) -> None:
    scheduler = Scheduler(cluster([a_node("a").cpu(8)]), calm(registry))
    change = nearest_fit(scheduler, busy("pod", "6"))[-1].change
    with translation.override("en"):
        assert message_translation.translate(change) == "load-profile busy -> idle"


@pytest.mark.parametrize(
    ("translations", "complaint"),
    [
        ({"zh-hans": {"{n} pods": "Pod"}}, "the translation of '{n} pods' to zh-hans lacks the placeholders {n}"),
        ({"zh_Hans": {"pods": "Pod"}}, "'zh_Hans' is not a language code such as zh-hans"),
    ],
)
def test_translations_are_checked(with_plugin: WithPlugin, translations: object, complaint: str) -> None:
    source = f"""
        from hetsched.engine.framework.registry import plugin

        @plugin("odd", summary="x", translations={translations!r})
        class Odd:
            def sort_key(self, pod): ...
    """
    with pytest.raises(PluginError) as caught:
        with_plugin(source, "odd")
    assert str(caught.value) == f"plugin 'odd' in hetsched.engine.plugins.odd: {complaint}"
