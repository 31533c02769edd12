"""Every page of the console with its URL on the demo cluster, for tests and screenshots."""

from __future__ import annotations

import json
from typing import NamedTuple

from playwright.sync_api import Page

from tests.browser.conftest import Console, ask, manifest_of


class Screen(NamedTuple):
    """A page; `{…}` in its URL is an ID that only the running console knows (`ids_of`)."""

    name: str
    address: str


SCREENS = (
    Screen("fleet", "/"),
    Screen("nodes", "/nodes/"),
    Screen("node-overview", "/nodes/kunpeng-0/"),
    Screen("node-isa", "/nodes/k1-0/isa/"),
    Screen("node-gpu", "/nodes/a100-0/gpu/"),
    Screen("node-numa", "/nodes/kunpeng-0/numa/"),
    Screen("node-balance", "/nodes/epyc-0/balance/"),
    Screen("node-pods", "/nodes/epyc-0/pods/"),
    Screen("node-decisions", "/nodes/epyc-0/decisions/"),
    Screen("workloads", "/workloads/"),
    Screen("why", "/workloads/{refused_workload}/why/"),
    Screen("why-placed", "/workloads/{placed_workload}/why/"),
    Screen("workload-refused", "/workloads/{refused_workload}/"),
    Screen("workload", "/workloads/{placed_workload}/"),
    Screen("decisions", "/decisions/"),
    Screen("decision", "/decisions/{placed}/"),
    Screen("decision-refused", "/decisions/{refused}/"),
    Screen("what-if-empty", "/what-if/"),
    Screen("what-if", "/what-if/?cpu=2&memory=4Gi&isa=rva22u64_v"),
    Screen("what-if-comparison", "/what-if/?cpu=2&memory=4Gi&isa=rva22u64_v&policy2=spread&drain=k1-0"),
    Screen("decision-comparison", "/decisions/{placed}/?with={refused}"),
    Screen("policies", "/policies/"),
    Screen("policy", "/policies/hetsched/"),
    Screen("queue", "/queue/"),
    Screen("holds", "/holds/"),
    Screen("hold", "/holds/{hold}/"),
    Screen("balance", "/balance/"),
    Screen("advice", "/advice/"),
    Screen("search", "/search/?q=k1"),
    Screen("clusters", "/clusters/"),
    Screen("audit", "/audit/"),
    Screen("sessions", "/sessions/"),
    Screen("tokens", "/tokens/"),
    Screen("webhooks", "/webhooks/"),
    Screen("shadow", "/shadow/"),
    Screen("search-miss", "/search/?q=nothing-has-this-name"),
)
# Returns the IDs of a pod that was placed on one of several nodes, and of a rejected pod.
_IDS = """
import json
from hetsched.placement.models import Decision
placed = Decision.objects.filter(verdict="placed").latest("id")
refused = Decision.objects.exclude(verdict="placed").latest("id")
print(json.dumps({
    "placed": placed.pk, "placed_workload": str(placed.pod.workload_id),
    "refused": refused.pk, "refused_workload": str(refused.pod.workload_id),
}))
"""


def addresses(console: Console, page: Page) -> dict[str, str]:
    """Return the URL of every page by name; the console must already have decided workloads.

    `page` is logged in and creates a hold, so that one exists.
    """
    ids = json.loads(console.run(_IDS))
    wish = {"cluster": "demo", "manifest": manifest_of("release"), "seconds": 3600, "note": "release 17"}
    ids["hold"] = ask(page, "holds/", wish)["id"]
    return {screen.name: screen.address.format(**ids) for screen in SCREENS}
