"""Alerts and dashboard use only exported metrics and labels, and the reference page documents all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import promql_parser
import pytest
import yaml
from django.conf import settings
from prometheus_client import CollectorRegistry

from hetsched.adapters.kubernetes.pods.binding import BindingResult
from hetsched.journal import metric_names
from hetsched.journal.counters import Metric
from hetsched.scheduling.extender import metrics as extender
from web.api.monitoring import prometheus
from web.api.monitoring.fleet import Fleet

FOLDER = settings.BASE_DIR / "deploy" / "observability"
PAGE = (settings.BASE_DIR / "docs" / "how-to" / "monitoring.md").read_text()
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
PANELS: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
_ENDS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@pytest.fixture
def given(db: None) -> dict[str, set[str]]:
    """Return the labels of every exported sample by name."""
    return {
        name + end: {*labels, *(("le",) if end == "_bucket" else ())}
        for name, kind, labels in families()
        for end in _ENDS[kind]
    }


def families() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for family in Fleet().collect():
        labels: tuple[str, ...] = tuple(family._labelnames)  # type: ignore[attr-defined]
        yield family.name, family.type, labels
    for registry in (prometheus.REGISTRY, extender.REGISTRY):
        for collector in collectors(registry):
            (family,) = collector.describe()
            yield family.name, family.type, tuple(collector._labelnames)


def collectors(registry: CollectorRegistry) -> list[Any]:
    """Return the collectors of the process itself."""
    return [name for name in registry._collector_to_names if not isinstance(name, Fleet)]


def selectors(node: Any) -> Iterator[Any]:
    """Yield every selector of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    if isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    for part in ("expr", "lhs", "rhs", "param"):
        below = getattr(node, part, None)
        if below is not None and not isinstance(below, str | int | float):
            yield from selectors(below)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def check(text: str, given: dict[str, set[str]]) -> None:
    """Fail for an expression that does not parse or that selects unknown metrics or labels."""
    tree = promql_parser.parse(text.replace("$__rate_interval", "5m"))
    known: set[str] = set()
    found = list(selectors(tree))
    assert found
    for selector in found:
        assert selector.name in given, f"{selector.name} is not exported: {text}"
        labels = given[selector.name]
        known |= labels
        matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        assert set(matchers) <= labels, f"{selector.name} has no {set(matchers) - labels}: {text}"
        if "outcome" in matchers and "binding" in selector.name:
            assert set(matchers["outcome"].split("|")) <= {result.value for result in BindingResult}
    for group in re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", text):
        asked = {name.strip() for name in group.split(",")}
        assert asked <= known, f"no metric has {asked - known}: {text}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_can_fire_and_has_a_remedy(rule: dict[str, Any], given: dict[str, set[str]]) -> None:
    check(rule["expr"], given)
    assert rule["labels"]["severity"] in ("warning", "critical")
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert all(annotations.values())
    page, _, anchor = annotations["runbook_url"].partition("#")
    assert (page, anchor) == ("docs/how-to/monitoring.md", rule["alert"].lower())
    assert f"\n### {rule['alert']}\n" in PAGE
    # Labels of the alert's texts have to remain after the expression.
    named = set(re.findall(r"\$labels\.(\w+)", annotations["summary"] + annotations["description"]))
    grouped = {name.strip() for group in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for name in group.split(",")}
    assert named <= grouped


def test_every_runbook_belongs_to_an_alert() -> None:
    names = [rule["alert"] for rule in RULES]
    assert re.findall(r"^### (Hetsched\w+)$", PAGE, re.MULTILINE) == sorted(set(names), key=names.index)


def test_dashboard_panels_use_exported_metrics(given: dict[str, set[str]]) -> None:
    shown = [panel for panel in PANELS if panel["type"] != "row"]
    for panel in shown:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            check(target["expr"].replace("$cluster", "lab"), given)


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = sorted((panel["gridPos"]["y"], panel["gridPos"]["x"], panel["gridPos"]["w"]) for panel in PANELS)
    for (y, x, width), (next_y, next_x, _) in pairwise(places):
        assert x + width <= 24
        assert next_y > y or next_x >= x + width


def test_page_documents_every_metric_with_its_labels(given: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| `(hetsched_\w+)` \| ([\w, ]*) ?\|", PAGE, re.MULTILINE)
    documented = {name: tuple(label.strip() for label in labels.split(",") if label.strip()) for name, labels in rows}
    ends = {"counter": "_total", "histogram": "", "gauge": ""}
    assert documented == {name + ends[kind]: labels for name, kind, labels in families()}


def test_every_stored_metric_is_exported(given: dict[str, set[str]]) -> None:
    metrics = [
        metric
        for metric in vars(metric_names).values()
        if isinstance(metric, Metric) and metric is not metric_names.CANARY
    ]
    assert {metric.name for metric in metrics} <= {name for name, _, _ in families()}
