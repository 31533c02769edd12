"""Tools of the MCP server: their arguments, their bounds and the REST requests that they send.

A docstring is the description of the tool that a language model reads. Results have the field names of the REST API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import Field

from hetsched.adapters.objects.documents import MAX_BYTES
from hetsched.client import Client
from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError

from ..look import report_on
from ..workloads.decisions import explain_all

MOST_ROWS = 200
MOST_MANIFEST_CHARACTERS = 1_000_000

Name = Annotated[str, Field(min_length=1, max_length=253)]
Filter = Annotated[str, Field(max_length=253, description="Only rows with this value; empty for all rows.")]
ClusterName = Annotated[
    str, Field(max_length=253, description="Name of the cluster; may be empty if the server has only one.")
]
Limit = Annotated[int, Field(ge=1, le=MOST_ROWS, description="Maximum number of rows.")]
Cursor = Annotated[str, Field(max_length=2000, description="Value of next in the previous page; empty at first.")]
Manifest = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_MANIFEST_CHARACTERS,
        description="Kubernetes objects as YAML or JSON: pods, Jobs, Deployments and other controllers.",
    ),
]
PolicyName = Annotated[str, Field(max_length=253, description="Policy for placement; empty for the policy in effect.")]
Priority = Annotated[
    int | None, Field(ge=-(2**31), le=2**31 - 1, description="Priority of all pods; null for that of the manifest.")
]
Family = Literal["", "riscv", "arm", "x86", "unknown"]
Verdict = Literal["", "placed", "not-now", "never-fits", "misconfigured"]
QueueState = Literal["", "due", "back-off", "images", "resting", "gated"]


class ReadTools:
    """Tools that change nothing on the server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def functions(self) -> list[Callable[..., dict[str, Any]]]:
        return [
            self.list_clusters, self.list_nodes, self.get_node, self.list_pending_pods, self.list_workloads,
            self.get_workload, self.list_decisions, self.explain, self.what_if, self.headroom, self.balance,
            self.pods_at_risk, self.list_policies, self.get_policy, self.cluster_report,
        ]  # fmt: skip

    def list_clusters(self, limit: Limit = 50, cursor: Cursor = "") -> dict[str, Any]:
        """List the clusters with their number of nodes and GPUs and the shares of CPU, memory and GPU in use (0-1)."""
        return self._page("clusters/", limit=limit, cursor=cursor)

    def list_nodes(
        self,
        cluster: ClusterName = "",
        family: Annotated[Family, Field(description="Family of the instruction set; empty for all.")] = "",
        pool: Filter = "",
        limit: Limit = 50,
        cursor: Cursor = "",
    ) -> dict[str, Any]:
        """List nodes by name: instruction set, pool, readiness, GPUs, pods, and shares of resources in use (0-1)."""
        return self._page("nodes/", cluster=cluster, family=family, pool=pool, limit=limit, cursor=cursor)

    def get_node(self, name: Name, cluster: ClusterName = "") -> dict[str, Any]:
        """Show a node: resources, instruction sets, NUMA zones, GPUs, taints, labels, pods and reported facts."""
        return self._get(f"nodes/{quote(name, safe='')}/", cluster=cluster)

    def list_pending_pods(
        self,
        cluster: ClusterName = "",
        state: Annotated[QueueState, Field(description="Only pods in this queue state; empty for all.")] = "",
        limit: Limit = 50,
    ) -> dict[str, Any]:
        """List pending pods: first those that are due, in scheduling order, with the events that they wait for."""
        query = {"cluster": cluster, "standing": state}
        return self._page("queue/", **query, limit=limit)

    def list_workloads(
        self,
        cluster: ClusterName = "",
        namespace: Filter = "",
        state: Annotated[str, Field(max_length=20, description="For example running or not-now; empty for all.")] = "",
        name: Filter = "",
        limit: Limit = 50,
        cursor: Cursor = "",
    ) -> dict[str, Any]:
        """List workloads, latest first: state, number of pods, priority and times."""
        query = {"cluster": cluster, "namespace": namespace, "state": state, "name": name}
        return self._page("workloads/", **query, limit=limit, cursor=cursor)

    def get_workload(self, workload: Name) -> dict[str, Any]:
        """Show a workload (w-...): its state, the duration of each state, and the node of each of its first pods."""
        return self._get(self.client.workload_path(workload))

    def list_decisions(
        self,
        cluster: ClusterName = "",
        namespace: Filter = "",
        pod: Filter = "",
        verdict: Annotated[Verdict, Field(description="Only this verdict; empty for all.")] = "",
        node: Filter = "",
        limit: Limit = 50,
        cursor: Cursor = "",
    ) -> dict[str, Any]:
        """List scheduling decisions, latest first: verdict, node, policy, score and a summary."""
        query = {"cluster": cluster, "namespace": namespace, "pod": pod, "verdict": verdict, "node": node}
        return self._page("decisions/", **query, limit=limit, cursor=cursor)

    def explain(
        self,
        subject: Annotated[
            Name, Field(description="A pod (NAMESPACE/NAME), a workload (w-...) or the ID of a decision.")
        ],
        cluster: ClusterName = "",
    ) -> dict[str, Any]:
        """Explain why a pod is on its node or pending.

        The result has the verdict, the reasons with the number of nodes that each excludes, the best nodes with their
        scores, the smallest changes that would place the pod (nearestFit) and the pending time by reason (why).
        """
        found = explain_all(self.client, subject, cluster)
        undecided = [{"pod": pod.pod, "state": pod.state} for pod in found.undecided]
        items = [one.document() for one in found.explained]
        return {"items": items, "undecided": undecided, "omitted": found.left_out}

    def what_if(
        self,
        manifest: Manifest,
        cluster: ClusterName = "",
        policy: PolicyName = "",
        priority: Priority = None,
        drain: Annotated[list[Name], Field(max_length=100, description="Nodes to drain first.")] = [],  # noqa: B006
        preempt: Annotated[bool, Field(description="Permit the eviction of pods with a lower priority.")] = True,
        replace: Annotated[
            bool, Field(description="Treat running pods with the names of pods in the manifest as deleted.")
        ] = False,
    ) -> dict[str, Any]:
        """Compute where the pods of a manifest would be placed now, on a copy of the cluster. Nothing is written.

        The verdict is placed, not-now (does not fit at present), never-fits or misconfigured.
        """
        body = {
            "manifest": manifest, "cluster": cluster, "policy": policy, "priority": priority, "drain": drain,
            "preempt": preempt, "replace": replace,
        }  # fmt: skip
        return dict(self.client.post("what-if/", body, repeat=True).json())

    def headroom(self, cluster: ClusterName = "") -> dict[str, Any]:
        """Show how many more copies of the most common pod shapes fit now, by pool, and the reason for a count of 0."""
        table = self._get("metrics/headroom/", cluster=cluster)
        # The manifest of a shape is long, and its requests are in the other fields.
        return table | {"shapes": [_without(shape, "manifest") for shape in table["shapes"]]}

    def balance(self, cluster: ClusterName = "", limit: Limit = 20) -> dict[str, Any]:
        """Show the utilisation (0-1), GPU fragmentation and balance of a cluster, and its least balanced nodes."""
        found = self._get("metrics/balance/", cluster=cluster)
        nodes = sorted(found["nodes"].items(), key=lambda item: (item[1], item[0]))
        listed = [{"name": name, "balance": balance} for name, balance in nodes[:limit]]
        return found | {"nodes": listed, "nodeCount": len(nodes), "byRequests": found["byRequests"][:limit]}

    def pods_at_risk(self, cluster: ClusterName = "") -> dict[str, Any]:
        """List the NUMA zones whose capacity is smaller than the reservations of their pods, with these pods."""
        return self._get("metrics/at-risk/", cluster=cluster)

    def list_policies(self, limit: Limit = 50, cursor: Cursor = "") -> dict[str, Any]:
        """List the scheduling policies with their active versions."""
        return self._page("policies/", limit=limit, cursor=cursor)

    def get_policy(self, name: Name) -> dict[str, Any]:
        """Show a scheduling policy: the plugins, weights and parameters of its active version, and its versions."""
        return self._get(f"policies/{quote(name, safe='')}/")

    def cluster_report(self, cluster: Name, limit: Limit = 50) -> dict[str, Any]:
        """Report the faults of a whole cluster with evidence and remedy, worst first, as hetsched look does.

        The report reads an export of the cluster: this needs the role operator and adds an entry to the audit trail.
        """
        from hetsched.adapters.look.dumped_cluster import parse_dump

        path = f"clusters/{quote(cluster, safe='')}/export/"
        content = self.client.send("GET", path, query={"reason": "report of hetsched mcp"}).content
        if len(content) > MAX_BYTES:
            raise InputError(
                "ResultTooLarge", f"the export has {len(content):,} bytes, the limit is {MAX_BYTES:,}", place="cluster",
                hint="Run hetsched look with a kubeconfig",
            )  # fmt: skip
        report = to_plain(report_on(parse_dump([("export", content)])))
        findings = report["findings"]
        return report | {"findings": findings[:limit], "omitted": max(len(findings) - limit, 0)}

    # -- requests ------------------------------------------------------------------------------------------------------

    def _get(self, path: str, **query: str) -> dict[str, Any]:
        return dict(self.client.get(path, **_filled(query)))

    def _page(self, path: str, **query: str | int) -> dict[str, Any]:
        """Return one page of a list; `next` is the cursor of the next page, or None."""
        page = self.client.get(path, **_filled(query))
        following = parse_qs(urlsplit(page["next"] or "").query).get("cursor", [None])[0]
        return {"items": page["items"], "next": following}


class WriteTools:
    """Tools that write; the server permits them only to a token with the role submitter or above."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def functions(self) -> list[Callable[..., dict[str, Any]]]:
        return [self.submit, self.cancel]

    def submit(
        self,
        manifest: Manifest,
        cluster: ClusterName = "",
        policy: PolicyName = "",
        name: Annotated[str, Field(max_length=253, description="Name of the workload; empty for a default.")] = "",
        priority: Priority = None,
        idempotency_key: Annotated[
            str,
            Field(
                max_length=255,
                pattern=r"^[!-+\--~]*$",
                description="Repeat a call with the same key and manifest to get the first result again.",
            ),
        ] = "",
    ) -> dict[str, Any]:
        """Submit the pods of a manifest to the scheduler. Call what_if first, and ask the user to confirm.

        The result has the ID of the workload; the pods are placed later, see get_workload.
        """
        accepted = self.client.submit(
            manifest, cluster=cluster, policy=policy, name=name, priority=priority, key=idempotency_key
        )
        return {**accepted.document, "replayed": accepted.replayed}

    def cancel(
        self,
        workload: Name,
        reason: Annotated[str, Field(min_length=1, max_length=500, description="Reason for the audit trail.")],
    ) -> dict[str, Any]:
        """Cancel a workload (w-...): its pods are deleted and its reservations released. Ask the user to confirm."""
        return dict(self.client.cancel(workload, reason).document)


def _filled(query: Mapping[str, str | int]) -> dict[str, str | int]:
    return {name: value for name, value in query.items() if value != ""}


def _without(document: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != field}
