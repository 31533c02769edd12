"""Redaction of responses to limited tokens: foreign names are removed from fields, texts of the caller are echoed.

The foreign namespace has a name that occurs in ordinary texts (`library/nginx`, `linux/amd64`), and that a guess can
match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, cast
from urllib.parse import quote

import msgspec
import pytest
from django.core.handlers.asgi import ASGIRequest

from hetsched.contracts.message import HIDDEN, Message, format_pods, verbatim
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision, ForgottenDecision, Pod
from hetsched.placement.queries import redaction
from web.api.etags import etag_of
from web.api.monitoring.prometheus import OUT_OF_SCOPE
from web.api.nodes import nodes
from web.api.nodes.isa import IsaInspectionView
from workers.schedule import run

from .conftest import Api

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, annotations: {note: "%s"}}
spec:
  priority: %d
  containers:
  - {name: main, image: %s, resources: {requests: {cpu: "%s", memory: 1Gi}}}
"""
FOREIGN = (("hush", "x"), ("library", "nginx"), ("linux", "amd64"))
INVENTED = "nosuch"


def pod(name: str, namespace: str, *, priority: int = 0, cpu: str = "7", image: str = "a/b", note: str = "") -> str:
    return POD % (name, namespace, note, priority, image, cpu)


def submit(api: Api, *manifests: str) -> str:
    body = "---\n".join(manifests)
    return str(api("POST", "workloads/", body, kind="application/yaml", status=202).json()["id"])


def counted() -> float:
    return sum(
        sample.value for metric in OUT_OF_SCOPE.collect() for sample in metric.samples if "_total" in sample.name
    )


@pytest.fixture
def limited(api: Callable[..., Api]) -> Api:
    return api("submitter", "team")


@pytest.fixture
def theirs(operator: Api, cluster: Cluster) -> str:
    """Run pods of other namespaces; two of them fill both nodes."""
    found = submit(
        operator,
        pod("x", "hush", priority=1),
        pod("nginx", "library", priority=2),
        pod("amd64", "linux", priority=3, cpu="100m"),
    )
    run(cluster.pk)
    assert Pod.objects.filter(state="placed").count() == 3
    return found


class TestEchoesOfTheCaller:
    """The oracle attack: an echoed text must not depend on which namespaces exist."""

    @pytest.mark.parametrize(("namespace", "name"), FOREIGN)
    def test_isa_parse_does_not_reveal_existing_names(
        self, limited: Api, theirs: str, namespace: str, name: str
    ) -> None:
        answers = []
        for guess in (f"{namespace}/{name}", f"{INVENTED}/{name}"):
            answer = limited("GET", f"isa/parse/?text={quote(guess)}")
            assert guess in answer.content.decode()
            document = {**answer.json(), "requestId": ""}
            answers.append((answer.status_code, str(document).replace(guess, "GUESS")))
        assert answers[0] == answers[1]

    def test_guesses_in_one_text_are_echoed_unchanged(self, limited: Api, theirs: str) -> None:
        text = " ".join(f"{namespace}/{name}" for namespace, name in FOREIGN) + f" {INVENTED}/x"
        assert text in limited("GET", f"isa/parse/?text={quote(text)}", status=400).json()["detail"]

    @pytest.mark.parametrize("field", ["hetsched.io/isa", "oks/gpu-number"])
    def test_what_if_echoes_annotations_unchanged(self, limited: Api, theirs: str, field: str) -> None:
        answers = []
        for namespace in ("hush", INVENTED):
            manifest = pod("p", "team").replace('note: ""', f"{field}: '{namespace}/x'")
            answer = limited("POST", "what-if/", {"manifest": manifest, "explain": True}).content.decode()
            assert f"{namespace}/x" in answer
            document = msgspec.json.decode(answer.replace(namespace, "GUESS"))
            answers.append({key: document[key] for key in ("verdict", "summary", "unplaced", "evictions")})
        assert answers[0] == answers[1]

    @pytest.mark.parametrize("namespace", ["hush", INVENTED])
    def test_rejected_manifest_is_echoed_unchanged(self, limited: Api, theirs: str, namespace: str) -> None:
        manifest = pod("p", "team").replace("cpu: ", f"'{namespace}/x': '{namespace}/x', cpu: ")
        problem = limited("POST", "workloads/", manifest, kind="application/yaml", status=400).json()
        assert f"{namespace}/x" in problem["detail"] + problem["place"]

    def test_images_and_labels_of_own_pods_are_kept(self, limited: Api, theirs: str, cluster: Cluster) -> None:
        manifest = pod("web", "team", cpu="100m", image="library/nginx")
        own = submit(limited, manifest.replace("spec:\n", "spec:\n  nodeSelector: {linux/amd64: 'true'}\n"))
        run(cluster.pk)
        row = Pod.objects.get(workload=own)
        why = limited.get(f"pods/{row.pk}/why/")
        assert why["manifest"]["spec"]["containers"][0]["image"] == "library/nginx"
        assert why["manifest"]["spec"]["nodeSelector"] == {"linux/amd64": "true"}
        shown = limited.get(f"decisions/{row.decision_id}/")
        assert "linux/amd64" in shown["reasons"][0]["message"]
        assert "linux/amd64" in shown["summary"] == why["summary"]

    def test_annotations_of_own_pods_are_kept(self, limited: Api, theirs: str, cluster: Cluster) -> None:
        own = submit(limited, pod("web", "team").replace('note: ""', "hetsched.io/isa: hush/x"))
        run(cluster.pk)
        row = Pod.objects.get(workload=own)
        shown = limited.get(f"decisions/{row.decision_id}/")
        assert "hush/x" in shown["reasons"][0]["message"]
        assert "hush/x" in shown["summary"]

    def test_inline_cluster_is_not_redacted(self, limited: Api, theirs: str) -> None:
        inline = (
            "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"
            "status: {allocatable: {cpu: '8', memory: 8Gi, pods: '9'}, conditions: [{type: Ready, status: 'True'}]}\n"
            "---\n" + pod("x", "hush").replace("spec:\n", "spec:\n  nodeName: n\n")
        )
        answer = limited("POST", "what-if/", {"manifest": pod("p", "team", priority=9), "cluster": inline}).json()
        assert [eviction["pod"] for eviction in answer["evictions"]] == ["hush/x"]
        assert "hush/x" in answer["summary"]


class TestStoredRows:
    """Messages of the ledger, with their parameters; rows of earlier versions have none."""

    @pytest.fixture
    def decided(self, operator: Api, theirs: str, cluster: Cluster) -> Decision:
        """Place a pod in scope by evicting a pod out of scope."""
        own = submit(operator, pod("strong", "team", priority=1000))
        run(cluster.pk)
        found = Decision.objects.get(workload=own)
        assert found.summary.endswith(", replacing hush/x")
        return found

    def test_victims_are_redacted_in_every_view_of_a_decision(
        self, api: Callable[..., Api], decided: Decision, cluster: Cluster
    ) -> None:
        viewer, before = api("viewer", "team"), counted()
        detail = viewer.get(f"decisions/{decided.pk}/")
        (row,) = viewer.get("decisions/")["items"]
        why = viewer.get(f"pods/{decided.pod_id}/why/")
        assert {item["summary"].partition(", replacing ")[2] for item in (detail, row, why)} == {HIDDEN}
        assert [(eviction["pod"], eviction["priority"]) for eviction in detail["evictions"]] == [(HIDDEN, 1)]
        for found in (detail, row, why):
            assert "hush" not in str(found)
        assert counted() == before

    def test_summary_of_an_expired_decision_is_redacted(self, api: Callable[..., Api], decided: Decision) -> None:
        kept = ("cluster_id", "namespace", "verdict", "summary", "created_at")
        ForgottenDecision.objects.create(id=10**6, **{name: getattr(decided, name) for name in kept})
        gone = api("viewer", "team")("GET", f"decisions/{10**6}/", status=410).json()
        assert gone["detail"].endswith(f"replacing {HIDDEN}")

    @pytest.mark.parametrize(
        ("message", "redacted"),
        [
            (Message("Preempted by {pods}", pods="hush/x"), f"Preempted by {HIDDEN}"),
            (
                Message(
                    "{node} was filled by {pods} before the pod was bound",
                    node="n1",
                    pods=format_pods(["hush/x", "team/b", "hush/y"], count=5),
                ),
                f"n1 was filled by {HIDDEN}, team/b, {HIDDEN} and 2 more before the pod was bound",
            ),
            ("Preempted by hush/x", HIDDEN),
            (verbatim("see linux/amd64"), "see linux/amd64"),
        ],
        ids=["preempted", "filled", "earlier version", "text of a user"],
    )
    def test_preemptor_of_an_own_pod_is_hidden(
        self, limited: Api, operator: Api, cluster: Cluster, message: str, redacted: str
    ) -> None:
        own = submit(limited, pod("a", "team"))
        run(cluster.pk)
        Pod.objects.filter(workload=own).update(message=message)
        victim = Pod.objects.get(workload=own)
        shown = limited.get(f"workloads/{own}/")["pods"]
        said = {item["pod"]: item["message"] for item in shown}[victim.key]
        assert said == redacted
        assert limited.get(f"pods/{victim.pk}/why/")["message"] == said
        assert limited.get(f"workloads/{own}/pods/")["items"][0]["message"] == said
        assert operator.get(f"workloads/{own}/")["pods"][0]["message"] == message


class TestETags:
    def test_etag_is_the_digest_of_the_redacted_body(
        self, api: Callable[..., Api], limited: Api, operator: Api, theirs: str, cluster: Cluster
    ) -> None:
        own = submit(operator, pod("strong", "team", priority=1000))
        run(cluster.pk)
        decision = Decision.objects.get(workload=own)
        address = f"decisions/{decision.pk}/"
        seen, whole = limited("GET", address), operator("GET", address)
        assert "hush" in whole.content.decode()
        assert seen["ETag"] == etag_of(seen.content) != whole["ETag"]
        # A correct guess of the victim does not give the ETag.
        guess = seen.content.decode().replace(HIDDEN, "hush/x").encode()
        assert etag_of(guess) != seen["ETag"]
        assert limited("GET", address, if_none_match=seen["ETag"]).status_code == 304
        assert limited("GET", address, if_none_match=whole["ETag"]).status_code == 200

    def test_if_match_accepts_the_redacted_etag(self, limited: Api, operator: Api, cluster: Cluster) -> None:
        own = submit(limited, pod("a", "team"))
        run(cluster.pk)
        Pod.objects.filter(workload=own).update(message=Message("Preempted by {pods}", pods="hush/x"))
        address, action = f"workloads/{own}/", {"action": "cancel", "reason": "r"}
        seen, whole = limited("GET", address), operator("GET", address)
        assert seen["ETag"] == etag_of(seen.content) != whole["ETag"]
        assert limited("GET", address, if_none_match=seen["ETag"]).status_code == 304
        refused = limited("POST", f"{address}actions/", action, if_match=whole["ETag"])
        assert refused.status_code == 412
        done = limited("POST", f"{address}actions/", action, if_match=seen["ETag"], status=200)
        assert done["ETag"] == etag_of(done.content)

    def test_tag_of_a_node_is_independent_of_hidden_contradictions(
        self, limited: Api, operator: Api, cluster: Cluster
    ) -> None:
        from hetsched.contracts.objects.fact_conflicts import FactConflict
        from hetsched.inventory.models import Node

        tags = set()
        for guess in ("hush/x", "hush/y"):
            doubt = FactConflict("numa", "2026-11-21T10:00:00Z", guess, "Refused", f"{guess} does not fit")
            Node.objects.filter(name="n1").update(doubts=(doubt,))
            tags.add(limited.tag("nodes/n1/"))
        assert len(tags) == 1

    def test_state_digest_is_keyed_for_limited_tokens(
        self,
        api: Callable[..., Api],
        operator: Api,
        theirs: str,
        cluster: Cluster,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(redaction, "derived", lambda purpose: purpose.encode() + b"one key")
        own = submit(operator, pod("small", "team", cpu="100m"))
        run(cluster.pk)
        decision = Decision.objects.get(workload=own)
        viewer = api("viewer", "team")

        def shown(caller: Api) -> tuple[str, str]:
            asked = caller("POST", "what-if/", {"manifest": pod("new", "team", cpu="100m")}, status=200).json()
            return caller.get(f"decisions/{decision.pk}/")["snapshot"], asked["snapshot"]

        assert shown(operator)[0] == decision.snapshot
        limited = shown(viewer)
        assert limited == shown(viewer)
        assert not {*limited} & {*shown(operator)}
        # A reader who knows all rows cannot compute it.
        monkeypatch.setattr(redaction, "derived", lambda purpose: purpose.encode() + b"another")
        assert not {*shown(viewer)} & {*limited}
        monkeypatch.setattr(redaction, "derived", lambda _: None)
        assert shown(viewer) == ("", "")


class TestTheAlarm:
    def test_unredacted_response_is_counted_and_unchanged(
        self, limited: Api, theirs: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nodes.NodeResource, "held", lambda _, node: list(nodes._held(node)))
        node = Pod.objects.get(namespace="hush").node
        before = counted()
        assert node is not None
        assert limited.get(f"nodes/{node.name}/")["pods"] == ["hush/x"]
        assert counted() == before + 1

    def test_limited_token_does_not_see_the_redaction_counter(self, api: Callable[..., Api], theirs: str) -> None:
        """The counter must not confirm a guessed name that is stored as the image of a pod in scope."""
        shown = {names: api("viewer", *names)("GET", "/metrics").content.decode() for names in ((), ("team",))}
        assert "hetsched_out_of_scope_names" in shown[()]
        assert "hetsched_out_of_scope_names" not in shown["team",]
        assert "hetsched_request_seconds" in shown["team",]

    def test_echoed_request_text_is_not_counted(self, limited: Api, theirs: str) -> None:
        before = counted()
        limited("GET", "isa/parse/?text=hush%2Fx")
        limited("POST", "what-if/", {"manifest": pod("p", "team").replace('note: ""', "hetsched.io/isa: 'hush/x'")})
        assert counted() == before


class TestTheScan:
    def test_unread_body_of_unknown_length_is_not_scanned(self, limited: Api) -> None:
        """Such a body may be a file of 256 MiB, which the scan would hold in memory."""

        class File:
            def read(self, *_sizes: int) -> bytes:
                raise AssertionError("it was read")

            readline = read

            def close(self) -> None:
                pass

        token = limited.client.defaults["HTTP_AUTHORIZATION"].encode()
        headers = [(b"transfer-encoding", b"chunked"), (b"content-type", b"text/plain"), (b"authorization", token)]
        where = {"path": "/api/v1/isa/inspect/", "query_string": b"", "headers": headers}
        request = ASGIRequest({"type": "http", "method": "POST", **where}, cast(BinaryIO, File()))
        assert IsaInspectionView.as_view()(request).status_code == 415
