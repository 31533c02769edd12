"""Run tests of live clusters on every version of the API server: `python3 dev.py matrix [VERSION]...`.

Each version runs the same test files, except tests of objects and fields that it does not have. Tests of fields that it
does not serve by default run on an API server with their feature gates. The table at the end shows the results. A
version without passed tests, or with skipped ones, has failed too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from . import control_plane
from .feature_gates import DEVICE_FIELDS

FILES = (
    "informer", "pod_lifecycle", "preemption_evictions", "resource_claims", "pod_groups", "running_pod_changes",
    "watch_faults", "rejecting_kubelets", "volume_claims", "rbac_permissions", "leader_election", "binding_conditions",
    "change_stream", "served_versions",
)  # fmt: skip
# Tests of objects and fields that a version does not have: pod groups, their topology constraints and disruption mode.
LEFT_OUT = {
    "1.34.4": ("test_pod_groups.py",),
    "1.35.4": (
        "test_pod_groups.py::test_members_run_in_one_topology_domain",
        "test_pod_groups.py::test_disruption_mode_decides_whether_members_are_evicted_alone",
    ),
}
# Tests of fields of devices that these versions serve with feature gates only.
DEVICES = (
    "test_binding_conditions.py",
    "test_resource_claims.py::test_allocation_contains_the_tolerations_of_its_request",
    "test_resource_claims.py::test_claims_get_shares_of_a_device",
    "test_resource_claims.py::test_allocation_selects_the_nodes_of_its_devices",
)
GATED = {"1.34.4": DEVICES, "1.35.4": DEVICES}


def run(version: str) -> tuple[int, int, int]:
    """Run the tests on one version; return the numbers of passed, failed and skipped tests."""
    env = {**os.environ, "HETSCHED_TEST_KUBERNETES": version}
    build = [sys.executable, "-m", "tests.kube.control_plane", "build"]
    subprocess.run(build, env=env, check=True)
    gated = GATED.get(version, ())
    counts = [_run_tests([f"test_{name}.py" for name in FILES], [*LEFT_OUT.get(version, ()), *gated], env)]
    if gated:
        counts.append(_run_tests(gated, (), env | {"HETSCHED_TEST_FEATURE_GATES": " ".join(DEVICE_FIELDS)}))
    passed, failed, skipped = (sum(column) for column in zip(*counts, strict=True))
    return passed, failed, skipped


def _run_tests(names: Sequence[str], omitted: Sequence[str], env: dict[str, str]) -> tuple[int, int, int]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        deselected = [f"--deselect=tests/kube/{name}" for name in omitted]
        tests = [f"{control_plane.HERE}/{name}" for name in names]
        subprocess.run([*pytest, *deselected, *tests], env=env, check=False)
        (suite,) = ElementTree.parse(report).getroot()
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    return total - failed - skipped, failed, skipped


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the given versions or all and print the table; return 1 if a test failed or was skipped."""
    known = (control_plane.VERSION, *control_plane.OTHERS)
    parser = argparse.ArgumentParser(prog="python3 dev.py matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"{', '.join(sorted(known))} (default: all)")
    given = parser.parse_args(arguments).versions
    if unknown := set(given) - set(known):
        parser.error(f'Unknown version "{", ".join(sorted(unknown))}" (VERSION): use {", ".join(sorted(known))}.')
    rows = [(version, *run(version)) for version in given or known]
    print("| API server | passed | failed | skipped |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    return 0 if all(passed and not failed and not skipped for _, passed, failed, skipped in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
