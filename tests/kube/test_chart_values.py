"""The chart's values: rejected by name, documented, and each with its effect on the rendered objects."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetsched.project.settings import ENV
from tests.kube import access
from tests.kube.chart import CHART, PRODUCTION, Json, helm, of, pods, rendered
from tests.kube.control_plane import ControlPlane
from tests.system.processes import ROOT

pytestmark = pytest.mark.needs("helm")
TABLE = ROOT / "docs" / "reference" / "chart.md"
MONITORING = ("serviceMonitor.enabled=true", "serviceMonitor.labels.team=ml", "prometheusRule.enabled=true")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("replicaCount=2", "replicaCount"),
        ("mode=observe", "/mode"),
        ("layout=ha", "/layout"),
        ("shadow.scheduler=hetsched", "/shadow/scheduler"),
        ("clusterName=My_Cluster", "/clusterName"),
        ("persistence.size=8", "/persistence/size"),
        ("persistence.sise=8Gi", "sise"),
        ("postgresql.image.tag=latest", "/postgresql/image/tag"),
        ("redis.maxMemory=lots", "/redis/maxMemory"),
        ("serviceMonitor.interval=often", "/serviceMonitor/interval"),
        ("web.replicas=0", "/web/replicas"),
        ("image.tag=latest", "/image/tag"),
        ("image.digest=sha256:12", "/image/digest"),
        ("settings.SECRET_KEY=abc", "SECRET_KEY"),
        ("settings.HETSCHED_BACTH=100", "HETSCHED_BACTH"),
        ("settings.LOG_LEVEL=debug", "LOG_LEVEL"),
        ("settings.HETSCHED_BATCH=0", "/settings/HETSCHED_BATCH"),
        ("settings.HETSCHED_BATCH=many", "/settings/HETSCHED_BATCH"),
        ("settings.HETSCHED_LOG_LEVEL=loud", "/settings/HETSCHED_LOG_LEVEL"),
        ("settings.HETSCHED_ADMIN=maybe", "/settings/HETSCHED_ADMIN"),
        ("settings.HETSCHED_OIDC_CLIENT_ID=1234567890", "/settings/HETSCHED_OIDC_CLIENT_ID"),
        ("extraEnv.HETSCHED_PROXY=a", "extraEnv.HETSCHED_PROXY is reserved: names that begin with HETSCHED_"),
        ("extraEnv.SSL-CERT=a", "SSL-CERT"),
        ("extraEnv.SSL_CERT_FILE=1", "/extraEnv/SSL_CERT_FILE"),
        ("single.resources.requests.cpu=lots", "/single/resources/requests/cpu"),
        ("web.resources.limits.memory=1GB", "/web/resources/limits/memory"),
        ("agent.resources.limits.cpu=-1", "/agent/resources/limits/cpu"),
        ("access.enrolledNamespaces={Team}", "enrolledNamespaces"),
        ("agent.server=http://hetsched.test", "/agent/server"),
        ("ingress.enabled=true", "/ingress/host"),
        ("ingress.enabled=true,ingress.host=h.test", "needs ingress.proxies"),
        ("agent.enabled=true", "needs HTTPS"),
        ("existingSecret=hetsched", "existingSecret needs layout=distributed"),
        ("web.tlsSecret=pair", "web.tlsSecret needs layout=distributed"),
        ("discovery.enabled=true", "discovery.enabled needs layout=distributed"),
        ("extender.enabled=true", "/extender/from"),
        ("extender.enabled=true,extender.from[0].ipBlock.cidr=10.0.0.0/8", "extender.enabled needs layout=distributed"),
        ("metrics.tokenKey=token", "metrics.tokenKey needs metrics.secret"),
        (
            "layout=distributed,web.tlsSecret=a,ingress.enabled=true,ingress.host=h,ingress.proxies={10.1.2.3}",
            "web.tlsSecret is for installations without an ingress",
        ),
    ],
)  # fmt: skip
def test_invalid_value_is_rejected_by_name(values: str, message: str) -> None:
    done = helm("template", "live", str(CHART), "--set", values)
    assert done.returncode != 0
    assert message in done.stderr


def test_forms_that_the_processes_accept_are_allowed(tmp_path: Path) -> None:
    forms = {
        "HETSCHED_LOG_LEVEL": "DEBUG", "HETSCHED_ADMIN": "False", "HETSCHED_DEMO": "TRUE", "HETSCHED_HTTPS": "Proxy",
        "HETSCHED_OIDC_CLIENT_SECRET_FILE": "", "HETSCHED_OIDC_CLIENT_SECRET": "0123456789abcdef\n",
    }  # fmt: skip
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"settings": forms}))
    done = helm("template", "live", str(CHART), f"--values={tmp_path / 'values.yaml'}")
    assert done.returncode == 0, done.stderr
    assert all(f"{{name: {name}, value: {json.dumps(value)}}}" in done.stdout for name, value in forms.items())


def test_short_secret_is_rejected_without_its_value() -> None:
    done = helm("template", "live", str(CHART), "--set", "settings.HETSCHED_OIDC_CLIENT_SECRET=swordfish")
    assert done.returncode != 0
    assert "/settings/HETSCHED_OIDC_CLIENT_SECRET" in done.stderr
    assert "swordfish" not in done.stderr


def test_settings_and_other_variables_reach_every_process() -> None:
    settings = ("HETSCHED_BATCH=250", "HETSCHED_ADMIN=false", "HETSCHED_MOST_WAITING_PODS=1000000")
    env = container("server", *(f"settings.{setting}" for setting in settings), "extraEnv.SSL_CERT_FILE=/data/ca.crt")
    found = {item["name"]: item["value"] for item in env["env"]}
    assert found.items() >= {
        "HETSCHED_BATCH": "250", "HETSCHED_ADMIN": "false", "HETSCHED_MOST_WAITING_PODS": "1000000",
        "SSL_CERT_FILE": "/data/ca.crt",
    }.items()  # fmt: skip


def closed(schema: Any, path: str = "") -> list[str]:
    """Return the paths of objects in a schema that accept any additional field of any type."""
    found = []
    if isinstance(schema, dict):
        if "properties" in schema and "if" not in path and "then" not in path and schema.get("type") == "object":
            found += [path] if schema.get("additionalProperties") is not False else []
        for key, value in schema.items():
            found += closed(value, f"{path}/{key}")
    return found


def test_schema_accepts_no_unknown_field() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert closed(schema) == []
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())) == set(schema["properties"]) - {"global"}


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return the values of a values file by path. Resources and lists are one value."""
    if not isinstance(value, dict) or not value or path.endswith(("resources", "nodeSelector")):
        return {path: value}
    return {
        key: leaf
        for name, below in value.items()
        for key, leaf in leaves(below, f"{path}.{name}" if path else name).items()
    }


def test_every_value_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `([A-Za-z.]+)` \| `(.*?)` \| \S", TABLE.read_text(), re.MULTILINE)
    documented = {name: yaml.safe_load(default) for name, default in rows}
    assert len(documented) == len(rows)
    values = leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    assert documented == values


def test_values_for_production_are_part_of_the_default() -> None:
    assert set(leaves(yaml.safe_load(PRODUCTION.read_text()))) <= set(
        leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    )


def container(role: str, *values: str, production: bool = False) -> Json:
    containers: list[Json] = dict(pods(*values, production=production))[role]["spec"]["containers"]
    (found,) = containers
    return found


def test_default_has_one_pod_with_minimal_privileges() -> None:
    found = dict(pods())
    assert set(found) == {"server", "test"}
    for role, pod in found.items():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert container(role)["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert spec["automountServiceAccountToken"] is (role == "server")
    server = container("server")
    assert {"readinessProbe", "livenessProbe", "startupProbe"} <= set(server)
    assert {item["name"] for item in server["env"]} <= ENV.asked
    assert not {"Deployment", "Job", "Secret"} & {item["kind"] for item in rendered()}


def test_mode_decides_over_rights_and_option() -> None:
    """Shadow mode grants only reads; no admission policy acts on the cluster."""
    name = "hetsched-live-hetsched"
    assert "--shadow=default-scheduler" in container("server")["command"]
    shipped = yaml.safe_load((ROOT / "deploy" / "shadow" / "role.yaml").read_text())["rules"]
    assert of("ClusterRole")[name]["rules"] == shipped
    assert {verb for rule in shipped for verb in rule["verbs"]} == {"get", "list", "watch"}
    bound = {item["roleRef"]["name"] for item in of("ClusterRoleBinding").values()}
    assert bound == {name}
    assert not {"Role", "RoleBinding", "ValidatingAdmissionPolicy"} & {item["kind"] for item in rendered()}
    active = ("mode=active", "access.enrolledNamespaces={team}")
    assert of("ClusterRole", *active)[name]["rules"] == access.rules_of("hetsched")
    assert container("server", *active)["command"][-2:] == ["--no-shadow", "--namespace=team"]
    assert f"{name}-allocations" in of("ValidatingAdmissionPolicy", *active)
    assert {item["roleRef"]["name"] for item in of("RoleBinding", *active).values()} == {
        f"{name}-elect", f"{name}-submit",
    }  # fmt: skip
    assert "--shadow=volcano" in container("server", "shadow.scheduler=volcano")["command"]
    assert "--in-cluster" not in container("server", "access.create=false")["command"]


def test_agents_in_shadow_mode_add_only_token_reviews() -> None:
    values = ("agent.enabled=true", "agent.server=https://hetsched.test")
    plain, with_agents = (of("ClusterRole", *some)["hetsched-live-hetsched"]["rules"] for some in ((), values))
    assert with_agents == [
        *plain, {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    ]  # fmt: skip


@pytest.mark.parametrize("production", [False, True])
def test_network_policies_select_every_pod(production: bool) -> None:
    labels = {role: pod["metadata"]["labels"] for role, pod in pods(production=production)}

    def selects(selector: Json, own: dict[str, str]) -> bool:
        return selector["matchLabels"].items() <= own.items() and all(
            (own[item["key"]] in item["values"]) is (item["operator"] == "In")
            for item in selector.get("matchExpressions", ())
        )

    policies = {name: item["spec"] for name, item in of("NetworkPolicy", production=production).items()}
    for role, own in labels.items():
        chosen = {name for name, spec in policies.items() if selects(spec["podSelector"], own)}
        isolating = {kind for name in chosen for kind in policies[name]["policyTypes"]}
        assert isolating == {"Ingress", "Egress"}, role
    ports = {
        name: [port["port"] for rule in spec.get("egress", ()) for port in rule.get("ports", ())]
        for name, spec in policies.items()
    }
    assert ports["live-hetsched"] == ([53, 53, 5432, 6379] if production else [53, 53])
    assert ports["live-hetsched-test"] == [53, 53, 8000]
    if production:
        assert (ports["live-hetsched-postgresql"], ports["live-hetsched-redis"]) == ([], [])
    (service,) = [item for name, item in of("Service", production=production).items() if name == "live-hetsched"]
    served = {role for role, own in labels.items() if service["spec"]["selector"].items() <= own.items()}
    assert served == {"web" if production else "server"}


def test_volume_is_chosen_by_persistence() -> None:
    def volume(*values: str) -> Any:
        (pod,) = [pod for role, pod in pods(*values) if role == "server"]
        return next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "data")

    assert volume()["persistentVolumeClaim"] == {"claimName": "live-hetsched"}
    assert volume("persistence.existingClaim=mine")["persistentVolumeClaim"] == {"claimName": "mine"}
    assert of("PersistentVolumeClaim", "persistence.existingClaim=mine") == {}
    assert "emptyDir" in volume("persistence.enabled=false")
    (claim,) = of("PersistentVolumeClaim", "persistence.size=2Gi", "persistence.storageClass=fast").values()
    spec = claim["spec"]
    assert (spec["storageClassName"], spec["resources"]["requests"]["storage"]) == ("fast", "2Gi")


def test_production_runs_its_own_services_unless_a_secret_names_others() -> None:
    sets = of("StatefulSet", production=True)
    assert set(sets) == {"live-hetsched-postgresql", "live-hetsched-redis"}
    for item in sets.values():
        spec = item["spec"]["template"]["spec"]
        (running,) = spec["containers"]
        assert running["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["automountServiceAccountToken"] is False
        assert not [item for item in running.get("env", ()) if item["name"].endswith("PASSWORD")]
    secret = of("Secret", production=True)["live-hetsched"]["stringData"]
    address = "live-hetsched-postgresql:5432/hetsched"
    assert secret["DATABASE_URL"] == f"postgres://hetsched:{secret['POSTGRES_PASSWORD']}@{address}"
    assert f"requirepass {secret['REDIS_PASSWORD']}\n" in secret["redis.conf"]
    # The first migration waits for the database of the release, so it is no hook that precedes the database.
    jobs = of("Job", production=True)
    assert "annotations" not in jobs["live-hetsched-migrate-first"]["metadata"]
    external = rendered("existingSecret=mine", production=True)
    assert not {"StatefulSet", "Secret", "PersistentVolumeClaim"} & {item["kind"] for item in external}
    (web,) = [pod for role, pod in pods("existingSecret=mine", production=True) if role == "web"]
    (sources,) = [volume["projected"]["sources"] for volume in web["spec"]["volumes"] if volume["name"] == "secrets"]
    assert [source["secret"]["name"] for source in sources] == ["mine"]
    digest = "sha256:" + "b" * 64
    image = container("postgresql", f"postgresql.image.digest={digest}", production=True)["image"]
    assert image == f"postgres@{digest}"


@pytest.mark.parametrize("production", [False, True])
def test_monitoring_objects_use_the_shipped_rules_and_a_token(production: bool) -> None:
    assert not {"ServiceMonitor", "PrometheusRule"} & {item["kind"] for item in rendered(production=production)}
    (rule,) = of("PrometheusRule", *MONITORING, production=production).values()
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "observability" / "alerts.yaml").read_text())
    (monitor,) = of("ServiceMonitor", *MONITORING, production=production).values()
    assert monitor["metadata"]["labels"]["team"] == "ml"
    (endpoint,) = monitor["spec"]["endpoints"]
    service = of("Service", *MONITORING, production=production)["live-hetsched"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    credentials = endpoint["authorization"]["credentials"]
    secret = of("Secret", *MONITORING, production=production)[credentials["name"]]
    assert len(secret["stringData"][credentials["key"]]) == 40
    role = "web" if production else "server"
    variables = {item["name"]: item["value"] for item in container(role, *MONITORING, production=production)["env"]}
    folder, _, file = variables["HETSCHED_METRICS_TOKEN_FILE"].rpartition("/")
    assert {"name": "secrets", "mountPath": folder, "readOnly": True} in (
        container(role, *MONITORING, production=production)["volumeMounts"]
    )
    (pod,) = [pod for name, pod in pods(*MONITORING, production=production) if name == role]
    (sources,) = [volume["projected"]["sources"] for volume in pod["spec"]["volumes"] if volume["name"] == "secrets"]
    assert {"key": credentials["key"], "path": file} in sources[-1]["secret"]["items"]
    own = ("metrics.secret=mine", "metrics.tokenKey=scrape", *MONITORING)
    (monitor,) = of("ServiceMonitor", *own, production=production).values()
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"] == {"name": "mine", "key": "scrape"}
    assert "live-hetsched-metrics" not in of("Secret", *own, production=production)


@pytest.mark.needs("etcd", "kube-apiserver")
def test_notes_name_the_next_step(plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch(0o600)
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    common = ["--namespace=hetsched", f"--kubeconfig={kubeconfig}", "--dry-run=client", "--skip-crds"]
    shown = {}
    for values in ((), ("mode=active",), ("layout=distributed", "existingSecret=x")):
        sets = [word for value in values for word in ("--set", value)]
        done = helm("install", "live", str(CHART), *common, *sets)
        assert done.returncode == 0, done.stderr
        shown[values] = done.stdout.partition("NOTES:")[2]
    assert "exec statefulset/live-hetsched -- python manage.py prepare --admin" in shown[()]
    assert "helm test live --namespace hetsched" in shown[()]
    assert "--reuse-values --set mode=active" in shown[()]
    assert "mode=active" not in shown[("mode=active",)]
    assert "exec deployment/live-hetsched-web" in shown[("layout=distributed", "existingSecret=x")]
