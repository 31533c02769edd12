"""Generated reference pages match the code."""

from __future__ import annotations

import pytest

from hetsched.cli.docs import reference_pages
from hetsched.engine.framework.registry import PluginInfo, load_registry

REGISTRY = load_registry()
PAGES = reference_pages(REGISTRY)


@pytest.mark.parametrize("info", REGISTRY, ids=lambda info: info.name)
def test_every_plugin_has_a_page_with_its_rule_and_parameters(info: PluginInfo) -> None:
    page = PAGES[f"reference/plugins/{info.name}.md"]
    assert info.doc in page
    for name in info.params.__struct_encode_fields__:
        assert f"| `{name}` |" in page


def test_pod_lifecycle_diagram_is_generated_from_its_table() -> None:
    assert "    pending --> placed\n" in PAGES["reference/pod-lifecycle.md"]
    assert "    succeeded --> " not in PAGES["reference/pod-lifecycle.md"]
