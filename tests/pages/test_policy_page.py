"""The policy page: its plugins as rows, its versions, and the permissions of each role."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from django.test import Client

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.models import Cluster
from hetsched.policies.actions import activate, save_draft, set_namespace_rule
from hetsched.policies.models import Policy, PolicyRevision
from tests.builders import a_pod
from tests.situations import ALICE, placed

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def policy_admin(browsing: Callable[..., Client]) -> Client:
    return browsing("policy-admin")


def shown(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, address
    return str(answer.content.decode())


def data(page: str, name: str) -> Any:
    """Return the data that the page passes to its scripts under this ID."""
    found = re.search(rf'<script id="{name}" type="application/json">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def rows(page: str, part: str) -> list[str]:
    """Return the names of the plugins in one list of the page, in order."""
    inside = page.split(f'id="{part}"', 1)[1].split("</section>", 1)[0]
    return re.findall(r'data-plugin="([^"]+)"', inside)


def draft(**weights: float) -> PolicyRevision:
    """Save a draft of `spread` with other weights."""
    spec = PolicyRevision.objects.get(policy__name="spread", state="active").spec
    uses = tuple(msgspec.structs.replace(use, weight=weights.get(use.name, use.weight)) for use in spec.plugins)
    return save_draft(msgspec.structs.replace(spec, plugins=uses), actor=ALICE, reason="a trial")


def test_plugin_rows_list_used_plugins_in_order(viewer: Client) -> None:
    page = shown(viewer, "/policies/spread/")
    spec = PolicyRevision.objects.get(policy__name="spread").spec
    assert rows(page, "uses") == [use.name for use in spec.plugins]
    assert sorted(rows(page, "uses") + rows(page, "unused")) == [info.name for info in load_registry()]
    for info in load_registry():
        assert info.summary in html.unescape(page)


def test_replay_is_linked_next_to_the_activation(policy_admin: Client, viewer: Client) -> None:
    link = '<a class="button" href="#preview">Replay</a><button type="button" class="primary" id="activate">'
    assert link in shown(policy_admin, "/policies/spread/")
    assert "#preview" not in shown(viewer, "/policies/spread/")


def test_parameters_come_from_the_plugins_own_declarations(viewer: Client) -> None:
    page = shown(viewer, "/policies/hetsched/")
    # nash-gain declares: full, "Full gain", 0.001 to 1, one third by default; the built-in policy sets 0.1.
    label = re.search(r'<label class="param set" data-param="full".*?</label>', page, re.DOTALL)
    assert label is not None
    assert 'data-kind="number"' in label[0]
    assert 'value="0.1"' in label[0]
    assert 'min="0.001" max="1"' in label[0]
    assert "Relative gain in evenness that scores 100" in label[0]
    # gang declares a time in seconds: the unit is next to the title.
    assert re.search(r'Timeout <span class="unit">s</span>', page)


def test_text_next_to_the_form_is_the_policy_object(viewer: Client) -> None:
    page = shown(viewer, "/policies/spread/")
    assert "kind: SchedulingPolicy" in page
    assert "- {name: taints, weight: 3}" in page


def test_latest_draft_is_shown_and_any_version_can_be_loaded(viewer: Client) -> None:
    draft(taints=5)
    assert data(shown(viewer, "/policies/spread/"), "desk")["shown"] == 2
    assert data(shown(viewer, "/policies/spread/?version=1"), "desk")["shown"] == 1
    assert viewer.get("/policies/spread/?version=9").status_code == 404
    assert viewer.get("/policies/no-such/").status_code == 404


def test_versions_have_author_state_and_reason(viewer: Client) -> None:
    revision = draft(taints=5)
    activate("spread", revision.version, actor=ALICE, reason="fewer evictions")
    page = shown(viewer, "/policies/spread/")
    versions = page.split('id="versions"', 1)[1]
    assert re.search(r"v2</th>\s*<td><span class=\"chip good\">active.*?alice.*?fewer evictions", versions, re.DOTALL)
    assert re.search(r"v1</th>\s*<td><span class=\"chip\">retired", versions, re.DOTALL)


def test_viewer_gets_the_reason_for_the_disabled_form(viewer: Client) -> None:
    draft(taints=5)
    page = shown(viewer, "/policies/spread/")
    assert "Editing policies needs the role policy-admin" in page
    assert '<fieldset disabled class="stack">' in page
    for control in ('id="save"', 'id="activate"', "data-activate", "data-rollback", 'id="replay"'):
        assert control not in page, control


def test_policy_admin_can_save_activate_and_roll_back(policy_admin: Client) -> None:
    revision = draft(taints=5)
    activate("spread", revision.version, actor=ALICE, reason="fewer evictions")
    page = shown(policy_admin, "/policies/spread/")
    for control in ('id="save"', 'id="activate"', 'data-activate="1"', 'data-rollback="1"', 'id="replay"'):
        assert control in page, control
    assert "<fieldset disabled" not in page


def test_cluster_owned_policy_is_read_only_until_a_takeover(policy_admin: Client, viewer: Client) -> None:
    Policy.objects.filter(name="spread").update(keeper=Cluster.objects.get())
    page = shown(policy_admin, "/policies/spread/")
    assert "This policy is stored in cluster fleet" in page
    assert 'id="save"' not in page
    assert 'data-act="/api/v1/policies/spread/owner/"' in page
    assert "/owner/" not in shown(viewer, "/policies/spread/")


def test_new_policy_starts_as_a_copy(policy_admin: Client, viewer: Client) -> None:
    answer = policy_admin.get("/policies/?new=nights&from=binpack")
    assert (answer.status_code, answer["Location"]) == (302, "/policies/nights/?from=binpack")
    page = shown(policy_admin, answer["Location"])
    assert "metadata: {name: nights}" in page
    assert data(page, "desk")["shown"] == 0
    assert not Policy.objects.filter(name="nights").exists()
    assert viewer.get("/policies/nights/?from=binpack").status_code == 403
    assert policy_admin.get("/policies/Nights!/?from=binpack").status_code == 404
    assert policy_admin.get("/policies/nights/").status_code == 404


def test_invalid_policy_name_is_rejected_with_a_message(policy_admin: Client) -> None:
    answer = policy_admin.get("/policies/?new=Batch+nights&from=binpack")
    assert answer.status_code == 404
    assert "Lower-case letters, digits and" in answer.content.decode()


def test_unknown_plugin_keeps_its_parameters(viewer: Client) -> None:
    revision = PolicyRevision.objects.get(policy__name="spread")
    spec = revision.spec
    gone = PluginUse("of-another-package", 7, {"depth": 3})
    PolicyRevision.objects.create(
        policy=revision.policy, version=2, spec=PolicySpec("spread", (*spec.plugins, gone), version=2), author="alice"
    )
    page = shown(viewer, "/policies/spread/")
    assert rows(page, "uses")[-1] == "of-another-package"
    assert "This release does not have this plugin" in page


def test_recent_placements_can_be_tried(viewer: Client, cluster: Cluster) -> None:
    placed(cluster, "n1", a_pod("p"))
    page = shown(viewer, "/policies/hetsched/")
    assert re.search(r"<option value=\"\d+\">default/p → n1 \(v1\)</option>", page)


def test_list_shows_users_of_a_policy_and_pending_drafts(
    viewer: Client, policy_admin: Client, cluster: Cluster
) -> None:
    draft(taints=5)
    draft(taints=6)
    set_namespace_rule(cluster, "batch", "spread", [], actor=ALICE)
    page = shown(viewer, "/policies/")
    row = page.split('<tr role="row" id="spread">', 1)[1].split("</tr>", 1)[0]
    assert "fleet/batch" in row
    assert "2 drafts, latest v3" in row
    assert '<a class="chip wait" href="/policies/spread/?version=3">' in row
    default = page.split('<tr role="row" id="hetsched">', 1)[1].split("</tr>", 1)[0]
    assert "cluster fleet" in default
    assert "New policy" not in page
    assert "New policy" in shown(policy_admin, "/policies/")
