"""Selectors, affinity, tolerations, spread and host ports of a pod."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm, Toleration
from hetsched.contracts.objects.workload import HostPort, LabelSelector, PodTerm, PreferredNodeTerm, SpreadConstraint
from tests.unit.adapters.reading import pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def test_node_affinity() -> None:
    shape = pod(
        f"""\
        nodeSelector: {{b: "2", a: "1"}}
        affinity:
          nodeAffinity:
            {REQUIRED}:
              nodeSelectorTerms:
              - matchExpressions: [{{key: size, operator: Gt, values: ["3"]}}]
                matchFields: [{{key: metadata.name, operator: In, values: [n1]}}]
              - {{}}
            {PREFERRED}:
            - {{weight: 7, preference: {{matchExpressions: [{{key: ssd, operator: Exists}}]}}}}
        """
    ).shape
    assert shape.node_selector == (("a", "1"), ("b", "2"))
    assert shape.node_terms == (
        NodeTerm((Expression("size", "Gt", ("3",)),), (Expression("metadata.name", "In", ("n1",)),)),
        NodeTerm(),
    )
    assert shape.preferred_nodes == (PreferredNodeTerm(7, NodeTerm((Expression("ssd", "Exists"),))),)


def test_pod_affinity_with_signed_weights() -> None:
    term = "topologyKey: zone, labelSelector: {matchLabels: {app: web}, matchExpressions: [{key: x, operator: Exists}]}"
    shape = pod(
        f"""\
        affinity:
          podAffinity:
            {REQUIRED}: [{{{term}, namespaces: [a]}}]
            {PREFERRED}: [{{weight: 10, podAffinityTerm: {{topologyKey: zone}}}}]
          podAntiAffinity:
            {REQUIRED}: [{{topologyKey: host, labelSelector: {{}}, namespaceSelector: {{}}}}]
            {PREFERRED}: [{{weight: 20, podAffinityTerm: {{topologyKey: zone}}}}]
        """
    ).shape
    web = LabelSelector((Expression("app", "In", ("web",)), Expression("x", "Exists")))
    assert shape.affinity == (PodTerm("zone", web, ("a",)),)
    assert shape.anti_affinity == (PodTerm("host", LabelSelector(), (), LabelSelector()),)
    assert shape.preferred_affinity == (PodTerm("zone", weight=10), PodTerm("zone", weight=-20))


def test_match_label_keys_are_resolved_with_the_pods_own_labels() -> None:
    term = "topologyKey: zone, labelSelector: {}, matchLabelKeys: [app, none], mismatchLabelKeys: [tenant]"
    shape = pod(
        f"""\
        affinity: {{podAntiAffinity: {{{REQUIRED}: [{{{term}}}]}}}}
        topologySpreadConstraints:
        - {{topologyKey: a, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, labelSelector: {{}}, matchLabelKeys: [app]}}
        """,
        labels={"app": "web", "tenant": "t"},
    ).shape
    app = Expression("app", "In", ("web",))
    assert shape.anti_affinity[0].selector == LabelSelector((app, Expression("tenant", "NotIn", ("t",))))
    assert shape.spread[0].selector == LabelSelector((app,))


def test_spread_constraints_with_their_defaults() -> None:
    shape = pod(
        """\
        topologySpreadConstraints:
        - {topologyKey: zone, maxSkew: 2, whenUnsatisfiable: ScheduleAnyway}
        - {topologyKey: host, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, minDomains: 3, labelSelector: {},
           nodeAffinityPolicy: Ignore, nodeTaintsPolicy: Honor}
        """
    ).shape
    assert shape.spread == (
        SpreadConstraint("zone", 2, hard=False),
        SpreadConstraint("host", 1, True, LabelSelector(), 3, honor_node_affinity=False, honor_taints=True),
    )


def test_tolerations() -> None:
    shape = pod(
        "tolerations: [{key: a, value: b, effect: NoSchedule}, {operator: Exists}, {key: c, operator: Exists}]"
    ).shape
    assert shape.tolerations == (
        Toleration("a", "Equal", "b", "NoSchedule"), Toleration(operator="Exists"), Toleration("c", "Exists"),
    )  # fmt: skip


def test_host_ports_of_containers_and_sidecars_are_read() -> None:
    shape = pod(
        """\
        containers: [{ports: [{containerPort: 80, hostPort: 8080}, {containerPort: 81}]}]
        initContainers:
        - {ports: [{containerPort: 90, hostPort: 90}]}
        - {restartPolicy: Always, ports: [{containerPort: 91, hostPort: 91, protocol: UDP, hostIP: 10.0.0.1}]}
        """
    ).shape
    assert shape.host_ports == (HostPort(8080), HostPort(91, "UDP", "10.0.0.1"))


def test_host_network_pod_uses_all_container_ports() -> None:
    shape = pod("hostNetwork: true\ncontainers: [{ports: [{containerPort: 80}]}]").shape
    assert shape.host_ports == (HostPort(80),)


@pytest.mark.parametrize(
    "spec",
    [
        "nodeSelector: {a: 1}",
        "nodeSelector: {'a b': x}",
        "nodeSelector: {a: 'x y'}",
        "tolerations: [{key: a, operator: Maybe}]",
        "tolerations: [{key: a, operator: Exists, value: b}]",
        "tolerations: [{value: b}]",
        "tolerations: [{key: a, effect: Never}]",
        f"affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: []}}}}}}",
        f"affinity: {{nodeAffinity: {{{PREFERRED}: [{{weight: 0, preference: {{}}}}]}}}}",
        f"affinity: {{nodeAffinity: {{{PREFERRED}: [{{preference: {{}}}}]}}}}",
        f"affinity: {{podAffinity: {{{REQUIRED}: [{{labelSelector: {{}}}}]}}}}",
        f"affinity: {{podAffinity: {{{REQUIRED}: [{{topologyKey: z, matchLabelKeys: [app]}}]}}}}",
        "topologySpreadConstraints: [{topologyKey: z, maxSkew: 0, whenUnsatisfiable: DoNotSchedule}]",
        "topologySpreadConstraints: [{topologyKey: z, whenUnsatisfiable: DoNotSchedule}]",
        "topologySpreadConstraints: [{topologyKey: z, maxSkew: 1, whenUnsatisfiable: Never}]",
        "topologySpreadConstraints: [{topologyKey: z, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, minDomains: 2}]",
        "containers: [{ports: [{containerPort: 0}]}]",
        "containers: [{ports: [{containerPort: 1, hostPort: 65536}]}]",
        "containers: [{ports: [{containerPort: 1, hostPort: 1, protocol: ICMP}]}]",
        "hostNetwork: 'yes'",
    ]
    + [
        f"affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: [{{matchExpressions: [{expression}]}}]}}}}}}"
        for expression in (
            "{key: a, operator: in, values: [x]}",
            "{key: a, operator: In}",
            "{key: a, operator: Exists, values: [x]}",
            "{key: a, operator: Gt, values: [x]}",
            "{key: a, operator: Gt, values: ['1', '2']}",
            "{key: '', operator: Exists}",
            "{key: a, operator: In, values: [1]}",
            "{key: a}",
        )
    ],
)
def test_selector_invalid_for_the_api_server_is_rejected(spec: str) -> None:
    with pytest.raises(InputError) as refused:
        pod(spec, labels={"app": "web"})
    assert refused.value.place.startswith("file.yaml#1 spec")


def test_terms_about_other_pods_have_a_number() -> None:
    # 63 terms of affinity and one of spread are 64, which is the most.
    terms = ", ".join(["{topologyKey: z, labelSelector: {}}"] * 63)
    spread = "{topologyKey: z, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}"
    most = f"affinity: {{podAntiAffinity: {{{REQUIRED}: [{terms}]}}}}\ntopologySpreadConstraints: [{spread}"
    shape = pod(f"{most}]").shape
    assert len(shape.anti_affinity) + len(shape.spread) == 64
    with pytest.raises(InputError) as refused:
        pod(f"{most}, {spread}]")
    assert (refused.value.code, refused.value.place) == ("TooManyTerms", "file.yaml#1 spec.affinity")
