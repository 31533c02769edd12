"""Schemathesis sends valid and invalid requests of each operation and checks the responses against the schema.

HETSCHED_TEST_FUZZ_CASES sets the number of requests per operation; `make fuzz` sends 1,000 and in addition the
boundaries of every value. The changes of a request are rolled back before the next one, so that a failure belongs to
one request.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection

from hetsched.access.roles import MAY, Action, Role
from hetsched.access.tokens import create_token
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.journal.audit import SYSTEM
from hetsched.placement import scheduler_cache
from hetsched.placement.actions import import_cluster, submit
from hetsched.placement.models import Decision
from hetsched.policies.models import Policy, PolicyRevision
from tests.api.conftest import POD, Api
from tests.api.test_route_permissions import TABLE
from tests.builders import a_node, a_pod
from workers.schedule import run

CASES = int(os.environ.get("HETSCHED_TEST_FUZZ_CASES", "6"))
# Codes of a request with an invalid shape: never the response to a request that its schema allows.
SHAPE = {
    "BodyMalformed",
    "BodyInvalid",
    "QueryUnknown",
    "QueryInvalid",
    "UnsupportedMediaType",
}
CONFIG = {
    "generation": {"max-examples": CASES, "mode": "all"},
    "phases": {
        "examples": {"enabled": True},
        "coverage": {"enabled": CASES > 100},
        "fuzzing": {"enabled": True},
    },
    "checks": {
        # Texts that are no manifest, names of missing objects, and existing objects that need If-Match: the schema
        # cannot express them, so the code of the response decides.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "304", 400, 403, 404, 409, 412, 422, 428]},
        "missing_required_header": {"expected-statuses": [400, 401, 403, 404, 409, 422, 428]},
    },
}
SCHEMA = schemathesis.openapi.from_dict(
    SchemaGenerator().get_schema(request=None, public=True),
    config=SchemathesisConfig.from_dict(CONFIG),
)
SCHEMA.app = get_wsgi_application()
ROUTES = {
    (
        method,
        "/" + route.replace("<str:", "{").replace("<int:", "{").replace(">", "}"),
    ): roles
    for (route, method), roles in TABLE.items()
}


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Use names of existing objects in three of four cases where names may be arbitrary."""
    path = case.meta.components.get(ParameterLocation.PATH) if case.meta else None
    if path is None or path.mode is not GenerationMode.POSITIVE:
        return case
    kind = context.operation.path.split("/")[3]
    for name, value in case.path_parameters.items():
        known = KNOWN.get((kind, name), KNOWN.get(name))
        if known is not None and isinstance(value, (str, int)) and crc32(str(value).encode(errors="replace")) % 4:
            case.path_parameters[name] = known
    return case


KNOWN: dict[Any, Any] = {
    ("clusters", "name"): "lab", ("nodes", "name"): "n2", ("policies", "name"): "hetsched",
    ("plugins", "name"): "taints", "collector": "racks", "version": 1, "other": 1,
}  # fmt: skip


@contextmanager
def undone() -> Iterator[None]:
    """Roll back all writes, and clear the caches."""
    try:
        with transaction.atomic():
            yield
            transaction.set_rollback(True)
    finally:
        scheduler_cache._caches.clear()


@schemathesis.check
def valid_shapes_are_accepted(context: Any, response: Any, case: Any) -> None:
    """Fail if a request with a valid shape is rejected for its shape; values may still be invalid."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE or response.status_code != 400:
        return
    problem = response.json()
    # No clock shows every time that can be written, such as the year 9999 west of Greenwich; `scoring` is a text of
    # JSON, and the schema of a query parameter states no more than text.
    assert problem["code"] not in SHAPE or problem["place"] in ("since", "until", "scoring"), problem


@pytest.fixture(scope="module")
def there(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Create, once, a cluster of two nodes with one placed pod and one that never fits."""
    with django_db_blocker.unblock(), transaction.atomic():
        names = Policy.objects.bulk_create([Policy(name=name, active_version=1) for name in BUILTIN])
        PolicyRevision.objects.bulk_create(
            PolicyRevision(
                policy=policy,
                version=1,
                spec=BUILTIN[policy.name],
                state="active",
                author="built-in",
            )
            for policy in names
        )
        nodes = (a_node("n1").build(), a_node("n2").gpus(2).build())
        cluster = import_cluster(ClusterContent(nodes=nodes), name="lab", actor=SYSTEM)
        pods = [a_pod("web").cpu("500m").build(), a_pod("big").cpu("900").build()]
        workload = submit(cluster, pods, actor=SYSTEM, manifest=POD).workload_id
        run(cluster.pk)
        placed = Decision.objects.get(verdict="placed")
        KNOWN.update(workload_id=workload, decision_id=placed.pk, pod_id=placed.pod_id)
        yield
        transaction.set_rollback(True)


@pytest.fixture
def token_for(api: Callable[..., Api], person: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Return a factory of tokens that may call an operation; if it requires a superuser, the token of a superuser."""
    made: dict[str, str] = {}

    def pick_token(case: Any) -> str:
        roles = ROUTES[case.operation.method.upper(), case.operation.path] - {"anonymous"}
        role = min(roles, default="root")
        if role not in made and roles:
            made[role] = api(role).client.defaults["HTTP_AUTHORIZATION"]
        elif role not in made:
            monkeypatch.setitem(MAY, Role.OPERATOR, frozenset(Action))
            root = person("root", superuser=True)
            made[role] = f"Bearer {create_token(role='operator', name='root', user=root)[1]}"
        return made[role]

    return pick_token


@SCHEMA.parametrize()
@settings(suppress_health_check=list(HealthCheck), database=None)
def test_fuzzed_operation(case: Any, there: None, token_for: Callable[[Any], str]) -> None:
    token = token_for(case)
    with undone():
        case.call_and_validate(headers={"Authorization": token}, excluded_checks=lenient(case))


def lenient(case: Any) -> list[Any]:
    """Return the excluded checks of an operation: one validates drafts, so its response reports their errors."""
    return [negative_data_rejection] if case.operation.path.endswith("/policies/{name}/check/") else []


def test_operations_one_after_the_other(
    there: None, person: Any, monkeypatch: pytest.MonkeyPatch, figures: dict[str, object]
) -> None:
    """Call operations in sequences: values of each response go into later requests, in any order."""
    monkeypatch.setitem(MAY, Role.OPERATOR, frozenset(Action))
    token = create_token(role="operator", name="root", user=person("root", superuser=True))[1]
    called: Counter[str] = Counter()

    class Sequence(SCHEMA.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            self.undone = undone()
            self.undone.__enter__()

        def teardown(self) -> None:
            self.undone.__exit__(None, None, None)

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            called[case.operation.label] += 1
            return {"headers": {"Authorization": f"Bearer {token}"}}

        def validate_response(self, response: Any, case: Any, **more: Any) -> None:
            # The test of each operation checks authentication.
            spared = [ignored_auth, *lenient(case)]
            case.validate_response(response, excluded_checks=spared, recorder=getattr(self, "recorder", None))

    Sequence.run(
        settings=settings(
            max_examples=max(10, CASES // 5), stateful_step_count=8, database=None, deadline=None,
            suppress_health_check=list(HealthCheck),
        )
    )  # fmt: skip
    figures["operations one after the other"] = f"{called.total()} requests to {len(called)} operations"
