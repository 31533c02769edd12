"""The banner of a live cluster with failing watches appears and disappears while the page is open."""

from __future__ import annotations

from playwright.sync_api import expect

from .conftest import Visitor

# The demo cluster is marked as live for a while; the test breaks and restores its watch.
_SET = """
from datetime import timedelta
from django.utils import timezone
from hetsched.inventory.models import Cluster, Connection, Sync
from hetsched.inventory.staleness import report_staleness
from hetsched.scheduling.leases import following
cluster = Cluster.objects.get(name="demo")
Cluster.objects.filter(pk=cluster.pk).update(kind="kubernetes")
connection, new = Connection.objects.get_or_create(cluster=cluster)
if new:
    following.take(cluster.pk, "test")
connection.refresh_from_db()
now = timezone.now() - timedelta(seconds={age})
facts = dict(epoch=connection.follower_epoch, synced_at=now, alive_at=now, failures={failures}, reason="{reason}")
Sync.objects.update_or_create(cluster=cluster, resource="nodes", defaults=facts)
report_staleness(cluster.pk)
"""
_END = """
from hetsched.inventory.models import Cluster, Connection, Sync
Sync.objects.all().delete()
Connection.objects.all().delete()
Cluster.objects.filter(name="demo").update(kind="demo")
"""


def test_banner_appears_with_its_reason_and_disappears(visitor: Visitor) -> None:
    console = visitor.console
    try:
        console.run(_SET.format(age=0, failures=0, reason=""))
        page = visitor.open("/workloads/")
        banner = page.locator("#stale")
        expect(page.locator("#live")).to_have_text("live")
        expect(banner).to_be_hidden()
        console.run(_SET.format(age=300, failures=3, reason="connection refused"))
        expect(banner).to_be_visible()
        expect(banner).to_contain_text(
            "connection refused; hetsched does not schedule pods for demo until the connection is restored"
        )
        expect(banner.locator("time")).to_contain_text("5")
        visitor.open("/what-if/")  # it is also over pages without their own topic
        expect(banner).to_be_visible()
        console.run(_SET.format(age=0, failures=0, reason=""))
        expect(banner).to_be_hidden()
    finally:
        console.run(_END)
