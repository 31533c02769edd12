"""The chart's layout distributed: rendered by helm, accepted by a real API server, with least-privilege processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetsched.project.settings import ENV
from tests.kube import access, chart, discovery_account, kinds
from tests.kube.chart import CHART, DISTRIBUTED, helm
from tests.kube.control_plane import ControlPlane, find

pytestmark = pytest.mark.needs("helm")
ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
# All options that can be enabled.
ALL = (
    "access.enrolledNamespaces={default}", "ingress.enabled=true", "ingress.host=hetsched.test",
    "ingress.proxies={10.1.0.0/16}",
    "ingress.className=any", "ingress.tlsSecret=tls", "settings.HETSCHED_LOG_LEVEL=debug",
    "priorityClassName=system-cluster-critical",
    "image.pullSecrets[0].name=registry", "networkPolicy.webFrom[0].podSelector.matchLabels.app=ingress",
    "extender.enabled=true", "extender.replicas=2", "extender.clients={kube-scheduler=live,other}",
    "extender.from[0].ipBlock.cidr=10.0.0.0/8", "tolerations[0].operator=Exists", "access.exemptUsers={crane}",
    "access.pullSecretNamespaces={default}", "images.registries={docker.io,quay.io}",
    "images.plainRegistries={lab:5000}", "images.registryPorts={443,5000}", "metrics.tokenKey=scrape",
)  # fmt: skip
DISTRIBUTED_SETS = [f"--set={value}" for value in DISTRIBUTED]
AGENT = ("agent.enabled=true", "agent.server=https://hetsched.test")
CALLERS = ("web", "io", "watch", "extender", "discover", "connect")  # processes that call the API server
PROCESSES = {
    "web": "web", "schedule": "worker-schedule", "io": "worker-io", "preview": "worker-preview", "watch": "watch",
    "beat": "beat", "discover": "worker-discover",
}  # fmt: skip


def rendered(*values: str) -> list[dict[str, Any]]:
    return chart.rendered(*DISTRIBUTED, *values)


def of(kind: str, *values: str) -> dict[str, dict[str, Any]]:
    return chart.of(kind, *DISTRIBUTED, *values)


def pods(*values: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pod templates of the processes."""
    yield from ((role, pod) for role, pod in chart.pods(*DISTRIBUTED, *values) if role != "test")


def test_leader_of_the_informers_ends_after_a_warm_standby_is_ready() -> None:
    strategies = {name: item["spec"].get("strategy") for name, item in of("Deployment", *ALL).items()}
    assert strategies["live-hetsched-watch"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }  # fmt: skip


def test_lint_finds_nothing() -> None:
    done = helm("lint", str(CHART), "--strict")
    assert done.returncode == 0, done.stdout
    assert not re.search("WARNING|ERROR", done.stdout)


def test_every_process_has_the_command_of_compose() -> None:
    commands = {role: pod["spec"]["containers"][0]["command"] for role, pod in pods()}
    assert set(commands) == {*PROCESSES, "migrate", "connect"}
    for role, service in PROCESSES.items():
        name = f"{role}@%h"
        expected = [word if not word.startswith("--hostname=") else f"--hostname={name}"
                    for word in COMPOSE[service]["command"]]  # fmt: skip
        assert sorted(commands[role]) == sorted(expected)
    assert commands["migrate"] == COMPOSE["migrate"]["command"]
    hooks = {name: job["metadata"]["annotations"]["helm.sh/hook"] for name, job in of("Job").items()}
    assert hooks == {
        "live-hetsched-migrate": "pre-install,pre-upgrade", "live-hetsched-connect": "post-install,post-upgrade",
    }  # fmt: skip
    assert commands["connect"] == ["python", "manage.py", "connect", "kubernetes", "--in-cluster", "--no-shadow"]
    observing = dict(pods("mode=shadow"))
    assert observing["connect"]["spec"]["containers"][0]["command"][-1] == "--shadow=default-scheduler"
    assert "discover" not in observing


@pytest.mark.parametrize("values", [(), ALL])
def test_containers_have_minimal_privileges(values: tuple[str, ...]) -> None:
    found = dict(pods(*values))
    for role, pod in found.items():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all(set(volume) & {"secret", "projected", "emptyDir"} for volume in spec["volumes"])
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        for kind in ("requests", "limits"):
            assert set(container["resources"][kind]) == {"cpu", "memory"}
        assert re.fullmatch(r"[^:@]+:(?!latest)[^:@]+", container["image"])
        # Only processes that call API servers have a service account token.
        assert spec["automountServiceAccountToken"] is (role in CALLERS)
        assert ("livenessProbe" in container) is (role not in ("migrate", "connect"))
    assert found["web"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz?component=web"
    assert found["web"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["path"] == "/livez"
    asked = {
        role: found[role]["spec"]["containers"][0]["livenessProbe"] for role in ("schedule", "io", "watch", "beat")
    }
    assert {role: probe["exec"]["command"] for role, probe in asked.items()} == {
        "schedule": ["hetsched", "health", "worker"], "io": ["hetsched", "health", "worker"],
        "watch": ["hetsched", "health", "watch"], "beat": ["hetsched", "health", "beat"],
    }  # fmt: skip
    ready = found["watch"]["spec"]["containers"][0]["readinessProbe"]
    assert ready["exec"]["command"] == ["hetsched", "health", "watch", "--ready"]


def test_extender_is_deployed_on_request() -> None:
    assert "extender" not in dict(pods())
    assert list(of("Service")) == ["live-hetsched"]
    (container,) = dict(pods(*ALL))["extender"]["spec"]["containers"]
    variables = {item["name"]: item["value"] for item in container["env"]}
    assert variables["HETSCHED_EXTENDER_CLIENTS"] == "kube-scheduler=live,other"
    mounts = {volume_mount["mountPath"]: volume_mount["name"] for volume_mount in container["volumeMounts"]}
    assert mounts[variables["HETSCHED_EXTENDER_CERTIFICATES"]] == "certificates"
    assert container["command"] == ["python", "manage.py", "extender"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports == {
        "extender": variables["HETSCHED_EXTENDER_PORT"], "probes": variables["HETSCHED_EXTENDER_PROBE_PORT"],
    }  # fmt: skip
    probed = {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe", "startupProbe")}
    assert probed == {"probes"}


def test_workers_get_registries_and_network_access_to_them() -> None:
    (container,) = dict(pods(*ALL))["io"]["spec"]["containers"]
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert variables["HETSCHED_REGISTRIES"] == "docker.io,quay.io"
    assert variables["HETSCHED_PLAIN_REGISTRIES"] == "lab:5000"
    policy = of("NetworkPolicy", *ALL)["live-hetsched-registries"]["spec"]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "io"
    assert [port["port"] for port in policy["egress"][0]["ports"]] == [443, 5000]
    assert "live-hetsched-registries" not in of("NetworkPolicy")


def test_digest_has_precedence_over_a_tag() -> None:
    digest = "sha256:" + "a" * 64
    images = {pod["spec"]["containers"][0]["image"] for _, pod in pods(f"image.digest={digest}", "image.tag=v1")}
    assert images == {f"hetsched@{digest}"}


def test_only_existing_settings_without_secrets_are_set() -> None:
    for _, pod in pods(*ALL):
        names = [item["name"] for item in pod["spec"]["containers"][0]["env"]]
        assert set(names) <= ENV.asked
        assert {"SECRET_KEY_FILE", "DATABASE_URL_FILE", "REDIS_URL_FILE"} <= set(names)
        assert not {"SECRET_KEY", "DATABASE_URL", "REDIS_URL"} & set(names)
        assert len(names) == len(set(names))


def test_account_has_the_shipped_role_and_admission_policy() -> None:
    roles = of("ClusterRole", *ALL)
    assert roles["hetsched-live-hetsched"]["rules"] == access.rules_of("hetsched")
    assert roles["hetsched-live-hetsched-submit"]["rules"] == access.rules_of("hetsched-submit")
    assert roles["hetsched-live-hetsched-pull-secrets"]["rules"] == access.rules_of("hetsched-pull-secrets")
    assert of("Role", *ALL)["hetsched-live-hetsched-elect"]["rules"] == access.rules_of("hetsched-elect")
    bound = {(item["metadata"]["namespace"], item["roleRef"]["name"]) for item in of("RoleBinding", *ALL).values()}
    assert bound == {
        ("default", "hetsched-live-hetsched-submit"), ("kube-system", "hetsched-live-hetsched-elect"),
        ("default", "hetsched-live-hetsched-pull-secrets"), ("kube-system", "hetsched-live-hetsched-discovery"),
    }  # fmt: skip
    policy = of("ValidatingAdmissionPolicy", *ALL)["hetsched-live-hetsched-allocations"]
    (shipped,) = [obj for obj in access.objects() if obj["kind"] == "ValidatingAdmissionPolicy"]
    ours, exempt = [item["expression"] for item in policy["spec"].pop("matchConditions")]
    (plain,) = [item["expression"] for item in shipped["spec"].pop("matchConditions")]
    assert ours == plain.replace(
        "system:serviceaccount:hetsched:hetsched", "system:serviceaccount:hetsched:live-hetsched"
    )
    assert exempt == '!(request.userInfo.username in ["crane"])'
    assert policy["spec"] == shipped["spec"]
    assert not {"ClusterRole", "ServiceAccount"} & {item["kind"] for item in rendered("access.create=false")}


def test_discovery_has_its_own_account_and_admission_policy() -> None:
    discover = dict(pods(*ALL))["discover"]["spec"]
    assert discover["serviceAccountName"] == "live-hetsched-discovery"
    assert {pod["spec"].get("serviceAccountName") for role, pod in pods(*ALL) if role != "discover"} == {
        "live-hetsched", None,
    }  # fmt: skip
    name = "hetsched-live-hetsched-discovery"
    assert of("ClusterRole", *ALL)[name]["rules"] == discovery_account.rules_of("ClusterRole")
    assert of("Role", *ALL)[name]["rules"] == discovery_account.rules_of("Role")
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        (subject,) = of(kind, *ALL)[name]["subjects"]
        assert (subject["name"], subject["namespace"]) == ("live-hetsched-discovery", "hetsched")
    policy = of("ValidatingAdmissionPolicy", *ALL)[name]["spec"]
    shipped = next(obj for obj in discovery_account.objects() if obj["kind"] == "ValidatingAdmissionPolicy")["spec"]
    (ours,), (plain,) = policy.pop("matchConditions"), shipped.pop("matchConditions")
    account = "system:serviceaccount:hetsched:live-hetsched-discovery"
    assert ours["expression"] == plain["expression"].replace(
        "system:serviceaccount:hetsched:hetsched-discovery", account
    )
    assert policy == shipped
    assert of("ValidatingAdmissionPolicyBinding", *ALL)[name]["spec"]["validationActions"] == ["Deny"]
    assert not [item for item in rendered("discovery.enabled=false") if "discover" in item["metadata"]["name"]]


def test_agent_is_disabled_by_default_and_read_only() -> None:
    assert "DaemonSet" not in {item["kind"] for item in rendered(*ALL)}
    (agent,) = of("DaemonSet", *AGENT).values()
    spec = agent["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume} == {"/proc", "/sys"}
    # /proc shows the environment of processes of the same user, and that of the control plane has secrets.
    users = {
        item["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for item in of("Deployment", *ALL).values()
    }
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] not in users
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    # Its account has no permissions; its token is for hetsched only, and names the node of its pod.
    account = spec["serviceAccountName"]
    bound = [item for item in rendered(*AGENT) if account in str(item.get("subjects"))]
    (projected,) = [volume["projected"]["sources"] for volume in spec["volumes"] if "projected" in volume]
    assert (account, bound, projected[0]["serviceAccountToken"]["audience"]) == ("live-hetsched-agent", [], "hetsched")
    accounts = {"name": "HETSCHED_AGENT_ACCOUNTS", "value": f"hetsched:{account}"}
    web = of("Deployment", *AGENT)["live-hetsched-web"]["spec"]["template"]["spec"]
    assert accounts in web["containers"][0]["env"]
    # Its own token is its only secret.
    assert not {"SECRET_KEY", "DATABASE_URL", "REDIS_URL"} & {
        item["name"].removesuffix("_FILE") for item in container["env"]
    }
    narrow = of("NetworkPolicy", *AGENT, "networkPolicy.webFrom[0].podSelector.matchLabels.app=ingress")
    callers = [item["podSelector"]["matchLabels"] for item in narrow["live-hetsched-web"]["spec"]["ingress"][0]["from"]]
    assert [labels.get("app.kubernetes.io/component") for labels in callers] == [None, "test", "agent"]
    policies = of("NetworkPolicy", *AGENT)
    assert policies["live-hetsched-agent"]["spec"]["podSelector"]["matchLabels"].items() <= (
        agent["spec"]["template"]["metadata"]["labels"].items()
    )


def test_pinning_agent_gets_only_its_sockets() -> None:
    (agent,) = of("DaemonSet", *AGENT, "agent.pin=true").values()
    spec = agent["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    writable = {
        volume_mount["mountPath"] for volume_mount in container["volumeMounts"] if not volume_mount.get("readOnly")
    }
    assert writable == {"/var/lib/hetsched-agent"}
    # A runtime that restarts creates another socket, which only its folder shows; unmounts propagate.
    folders = {
        volume_mount["mountPath"]: volume_mount["mountPropagation"]
        for volume_mount in container["volumeMounts"]
        if volume_mount["name"] in ("runtime", "kubelet")
    }
    assert folders == dict.fromkeys(("/run/containerd", "/host/var/lib/kubelet"), "HostToContainer")
    (place,) = [volume["hostPath"]["path"] for volume in spec["volumes"] if volume["name"] == "runtime"]
    assert place == "/run/containerd"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_gpu_agent_mounts_no_other_kubelet_files() -> None:
    """/var/lib/kubelet contains the Secrets and tokens of every pod of the node."""
    (agent,) = of("DaemonSet", *AGENT, "agent.devices=true").values()
    spec = agent["spec"]["template"]["spec"]
    paths = {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert paths == {
        "/proc", "/sys", "/var/lib/hetsched-agent", "/var/lib/kubelet/config.yaml",
        "/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/memory_manager_state",
        "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources",
    }  # fmt: skip
    mounts = {volume_mount["mountPath"] for volume_mount in spec["containers"][0]["volumeMounts"]}
    assert {"/host/var/lib/kubelet/config.yaml", "/host/var/lib/kubelet/cpu_manager_state"} <= mounts
    assert "/host/var/lib/kubelet" not in mounts


@pytest.mark.parametrize(
    ("values", "server", "expected", "ports"),
    [
        (
            ("ingress.enabled=true", "ingress.host=hetsched.test", "ingress.proxies={10.1.2.3}"),
            "https://hetsched.test",
            ("proxy", None),
            [53, 53, 443],
        ),
        (("web.tlsSecret=pair",), "https://live-hetsched.hetsched.svc:80", ("on", None), [53, 53, 8000]),
        (("agent.server=https://h.test:8443",), "https://h.test:8443", (None, None), [53, 53, 8443]),
        (("agent.allowPlainHttp=true",), "http://live-hetsched:80", (None, "1"), [53, 53, 8000]),
    ],
)
def test_agents_speak_https_unless_plain_http_is_allowed(
    values: tuple[str, ...], server: str, expected: tuple[str | None, str | None], ports: list[int]
) -> None:
    values = ("agent.enabled=true", "agent.caSecret=issuer", *values)
    (agent,) = of("DaemonSet", *values).values()
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert (env["HETSCHED_SERVER"], env["HETSCHED_CA_FILE"]) == (server, "/run/secrets/ca/ca.crt")
    assert "/run/secrets/ca" in {volume_mount["mountPath"] for volume_mount in container["volumeMounts"]}
    web = dict(pods(*values))["web"]["spec"]["containers"][0]
    found = {item["name"]: item.get("value") for item in web["env"]}
    assert (found.get("HETSCHED_HTTPS"), found.get("HETSCHED_AGENT_KEYS_OVER_HTTP")) == expected
    assert "live-hetsched.hetsched.svc" in found["ALLOWED_HOSTS"]
    assert ("--ssl-certfile=/run/secrets/certificates/tls.crt" in web["command"]) is (expected[0] == "on")
    assert web["readinessProbe"]["httpGet"].get("scheme", "HTTP") == ("HTTPS" if expected[0] == "on" else "HTTP")
    egress = of("NetworkPolicy", *values)["live-hetsched-agent"]["spec"]["egress"]
    assert [port["port"] for rule in egress for port in rule["ports"]] == ports


def test_forwarded_headers_are_trusted_from_the_ingress_only() -> None:
    web = dict(pods(*ALL))["web"]["spec"]
    assert {"name": "FORWARDED_ALLOW_IPS", "value": "10.1.0.0/16"} in web["containers"][0]["env"]
    assert "FORWARDED_ALLOW_IPS" not in {item["name"] for item in dict(pods())["web"]["spec"]["containers"][0]["env"]}


def test_every_variable_is_rendered_once(tmp_path: Path) -> None:
    """Numbers in a values file are floats to helm, unlike those of `--set`."""
    values = tmp_path / "values.yaml"
    own = {"FORWARDED_ALLOW_IPS": "10.2.0.0/16", "HETSCHED_EXTENDER_PORT": 9999, "HETSCHED_BODIES_BYTES": 536870912}
    values.write_text(yaml.safe_dump({"settings": own}))
    arguments = [word for value in (*DISTRIBUTED, *ALL, *AGENT) for word in ("--set", value)]
    done = helm("template", "live", str(CHART), "-f", str(values), *arguments)
    assert done.returncode == 0, done.stderr
    seen = {}
    for document in filter(None, yaml.safe_load_all(done.stdout)):
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            names = [variable["name"] for variable in container["env"]]
            assert len(names) == len(set(names))
            seen[container["name"]] = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert {name: seen["web"][name] for name in own} == {name: str(value) for name, value in own.items()}
    assert seen["extender"]["HETSCHED_EXTENDER_PORT"] == "8443"


def test_web_pods_have_space_for_request_bodies() -> None:
    found = {
        role: {volume["name"]: volume.get("emptyDir") for volume in pod["spec"]["volumes"]} for role, pod in pods()
    }
    assert found["web"]["tmp"] == {"sizeLimit": "1Gi"}
    assert found["io"]["tmp"] == {"sizeLimit": "256Mi"}


def test_network_policy_excludes_agents() -> None:
    """The policy opens the ports of the database and the message store, which an agent never calls."""
    policy = of("NetworkPolicy", *AGENT)["live-hetsched"]["spec"]["podSelector"]
    assert policy["matchExpressions"] == [
        {"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["agent", "test"]}
    ]


def test_network_policies_and_budgets_select_their_pods() -> None:
    labels = {role: pod["metadata"]["labels"] for role, pod in chart.pods(*DISTRIBUTED, *ALL)}

    def selected(selector: dict[str, Any]) -> set[str]:
        wanted = selector["matchLabels"]
        some = selector.get("matchExpressions", ())
        return {
            role
            for role, own in labels.items()
            if wanted.items() <= own.items()
            and all((own[item["key"]] in item["values"]) is (item["operator"] == "In") for item in some)
        }

    policies = {name: selected(item["spec"]["podSelector"]) for name, item in of("NetworkPolicy", *ALL).items()}
    assert policies == {
        "live-hetsched": set(labels) - {"test"},
        "live-hetsched-test": {"test"},
        "live-hetsched-api-servers": {"web", "io", "watch", "extender", "discover"},
        "live-hetsched-extender": {"extender"},
        "live-hetsched-registries": {"io"},
        "live-hetsched-web": {"web"},
    }
    assert "ingress" not in of("NetworkPolicy", *ALL)["live-hetsched"]["spec"]
    budgets = [selected(item["spec"]["selector"]) for item in of("PodDisruptionBudget", *ALL).values()]
    assert sorted(map(sorted, budgets)) == [
        [role] for role in ("extender", "io", "preview", "schedule", "watch", "web")
    ]
    services = {name: selected({"matchLabels": item["spec"]["selector"]}) for name, item in of("Service", *ALL).items()}
    assert services == {"live-hetsched": {"web"}, "live-hetsched-extender": {"extender"}}


@pytest.mark.needs("etcd", "kube-apiserver")
@pytest.mark.parametrize(
    ("values", "production"),
    [((), False), (("mode=active",), False), ((), True), (DISTRIBUTED, False), ((*DISTRIBUTED, *ALL), False)],
)
def test_api_server_accepts_every_object(
    plane: ControlPlane, tmp_path: Path, values: tuple[str, ...], production: bool
) -> None:
    strict = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hetsched", "labels": strict}}
    path = "/api/v1/namespaces/hetsched?fieldManager=test&force=true"
    plane.call("PATCH", path, namespace, content="application/apply-patch+yaml")
    # Pods as their controllers would create them: the namespace rejects those with too many privileges.
    made = [
        {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": role}}
        for role, pod in chart.pods(*values, production=production)
    ]
    objects = [*chart.rendered(*values, production=production), *made]
    kubeconfig, manifest = tmp_path / "kubeconfig", tmp_path / "objects.json"
    context = {"cluster": "test", "user": "admin", "namespace": "hetsched"}
    kubeconfig.write_text(json.dumps({**plane.kubeconfig(), "contexts": [{"name": "test", "context": context}]}))
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    kubectl = find("kubectl")
    assert kubectl is not None
    common = [kubectl, f"--kubeconfig={kubeconfig}", f"--cache-dir={tmp_path}", "apply", "--server-side"]
    done = subprocess.run(
        [*common, "--dry-run=server", "--validate=strict", f"--filename={manifest}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


def test_chart_contains_the_crds() -> None:
    text = helm("template", "live", str(CHART), "--include-crds").stdout
    carried = [
        document for document in yaml.safe_load_all(text) if document and document["kind"] == "CustomResourceDefinition"
    ]
    assert sorted(carried, key=lambda item: str(item["metadata"]["name"])) == kinds.ours()


def test_no_process_runs_an_unknown_command() -> None:
    command = [sys.executable, "manage.py", "help", "--commands"]
    known = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    run = [pod["spec"]["containers"][0]["command"] for _, pod in pods()]
    ours = [words[2] for words in run if "manage.py" in words]
    assert sorted(ours) == ["connect", "prepare", "watch"]
    assert set(ours) <= set(known)


@pytest.mark.needs("etcd", "kube-apiserver")
def test_release_is_installed_upgraded_and_uninstalled(plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    kubeconfig.chmod(0o600)
    # No pods run here, so the migration is left out; the CRDs have their own tests.
    common = ["--namespace=release", f"--kubeconfig={kubeconfig}"]
    for words in (
        ["install", "live", str(CHART), *DISTRIBUTED_SETS, "--create-namespace", "--no-hooks", "--skip-crds"],
        ["upgrade", "live", str(CHART), "--reuse-values", "--no-hooks", "--skip-crds", "--set=web.replicas=3"],
    ):
        done = helm(*words, *common)
        assert done.returncode == 0, done.stderr
    web = plane.call("GET", "/apis/apps/v1/namespaces/release/deployments/live-hetsched-web")
    assert web["spec"]["replicas"] == 3
    done = helm("uninstall", "live", "--no-hooks", *common)
    assert done.returncode == 0, done.stderr
    for path in (
        "/apis/apps/v1/namespaces/release/deployments",
        f"{access.RBAC}/clusterroles",
        f"{access.RBAC}/clusterrolebindings",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    ):
        remaining = [item["metadata"]["name"] for item in plane.call("GET", path)["items"]]
        assert [name for name in remaining if "hetsched" in name] == []
    access.wait_until_guarded(plane, guarded=False)
