"""Only administrators manage tokens; every role with read access sees the audit log, except entries about tokens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client

from hetsched.access.tokens import create_token
from hetsched.inventory.actions import cordon, set_default_policy
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Program, record
from hetsched.journal.chain import seal_new, verify_oldest
from hetsched.journal.models import AuditEntry
from hetsched.storage.triggers import install_of
from tests.builders import a_pod
from tests.pages.test_node_agent_reports import words
from tests.situations import submitted

ADA = Program("ada", "operator")


@pytest.fixture
def root(browsing: Callable[..., Client]) -> Client:
    return browsing(is_superuser=True)


def test_tokens_are_listed_without_their_secrets(root: Client) -> None:
    token, plaintext = create_token(role="submitter", name="CI <b>", namespaces=["team"])
    create_token(role="viewer", name="Grafana", lifetime=timedelta(days=2))
    shown = words(root, "/tokens/")
    columns = "valid submitter team priority up to 0 pods with a priority below 0 in every namespace service-submitter"
    assert f"CI <b> {plaintext[:8]}…{plaintext[-4:]} {columns}" in shown
    assert "Grafana" in shown
    assert "expires soon viewer all namespaces" in shown
    page = root.get("/tokens/").content.decode()
    assert plaintext not in page
    assert f'data-act="/api/v1/tokens/{token.token_key}/revoke/"' in page


@pytest.mark.parametrize("group", ["viewer", "operator", "policy-admin"])
def test_user_without_the_right_to_manage_sees_no_tokens(browsing: Callable[..., Client], group: str) -> None:
    client = browsing(group)
    answer = client.get("/tokens/")
    assert answer.status_code == 403
    assert "Only administrators can manage tokens" in answer.content.decode()
    assert 'href="/tokens/"' not in client.get("/audit/").content.decode()


@pytest.fixture
def acted(cluster: Cluster) -> Cluster:
    cordon(cluster, "n1", actor=ADA, reason="fan & noise")
    set_default_policy(cluster, "binpack", actor=ADA, reason="fewer nodes")
    submitted(cluster, a_pod("p"))
    create_token(role="viewer", name="Grafana")
    return cluster


def test_entries_have_actor_change_reason_and_previous_value(viewer: Client, acted: Cluster) -> None:
    shown = words(viewer, "/audit/")
    assert "ada operator node.cordon fleet/n1 node fan & noise" in shown
    assert "cluster.policy fleet cluster fewer nodes hetsched → binpack" in shown
    assert "workload.submit" not in shown  # on a separate tab
    assert "workload.submit" in words(viewer, "/audit/?show=submissions")
    assert 'href="/nodes/n1/?cluster=fleet"' in viewer.get("/audit/").content.decode()


def test_entries_about_tokens_are_for_administrators(viewer: Client, root: Client, acted: Cluster) -> None:
    assert "token.create" not in words(viewer, "/audit/")
    assert "token.create" in words(root, "/audit/")


def test_entries_are_found_by_their_text(viewer: Client, acted: Cluster) -> None:
    for query in ("who%3Dada+action%3Dnode.*", "noise", "object~n1", "age%3C1h+kind%3Dnode"):
        shown = words(viewer, f"/audit/?q={query}")
        assert ("node.cordon" in shown, "cluster.policy" in shown) == (True, False), query
    assert "No entries match the filter." in words(viewer, "/audit/?q=who%3Dbob")


def test_trail_shows_its_verified_range_and_changes(viewer: Client, acted: Cluster) -> None:
    assert "No entries are sealed yet" in words(viewer, "/audit/")
    sealed = seal_new(settled=timedelta(0))
    assert f"verified {sealed} of {sealed} entries sealed and verified, last verified" in words(viewer, "/audit/")
    record(actor="kim", role="operator", action="node.cordon", obj=("node", "n1"))
    assert f"{sealed} of {sealed + 1} entries sealed and verified" in words(viewer, "/audit/")
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER journal_auditentry_append_only" + (
            "" if connection.vendor == "sqlite" else " ON journal_auditentry"))  # fmt: skip
        cursor.execute("UPDATE journal_auditentry SET reason = 'none' WHERE action = 'node.cordon'")
    install_of(AuditEntry._meta.app_config)
    verify_oldest()
    assert "The audit log does not match its seals." in words(viewer, "/audit/")
