"""The suite of Kubernetes' own tests reads reports, compares two schedulers and rejects wrong arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube.control_plane import Unavailable
from tests.upstream import __main__ as command
from tests.upstream.programs import with_external_server
from tests.upstream.results import Comparison, of_go_log, of_junit, report
from tests.upstream.sets import DIFFERENCES, SETS

ROOT = Path(__file__).resolve().parents[3]
LOG = """=== RUN   TestFilter
--- FAIL: TestFilter (3.0s)
    --- PASS: TestFilter/fits (1.0s)
    --- FAIL: TestFilter/does_not_fit (2.0s)
        --- FAIL: TestFilter/does_not_fit/on_arm (2.0s)
--- SKIP: TestAlpha (0.0s)
--- PASS: TestOther (0.1s)
"""
JUNIT = """<testsuites><testsuite>
<testcase name="[SynchronizedBeforeSuite]" status="passed"/>
<testcase name="[It] binds" status="passed"/>
<testcase name="[It] preempts" status="failed"/>
<testcase name="[It] ends late" status="timedout"/>
<testcase name="[It] needs a cloud" status="skipped"/>
</testsuite></testsuites>"""
SOURCE = """package util

import (
\t"context"

\tcliflag "k8s.io/component-base/cli/flag"
\t"k8s.io/klog/v2"
\t"k8s.io/kubernetes/pkg/features"
)

// InitTestAPIServer initializes a test environment.
func InitTestAPIServer(t *testing.T) *TestContext {
\tcliflag.Set(features.Alpha)
}

// The features. of this comment are not code.
func Log(ctx context.Context) {
\tklog.Info(ctx)
}
"""


def test_only_go_tests_without_subtests_count() -> None:
    assert of_go_log(LOG) == {"TestFilter/fits": True, "TestFilter/does_not_fit/on_arm": False, "TestOther": True}


def test_skipped_tests_and_setup_of_a_junit_report_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    assert of_junit(path) == {"binds": True, "preempts": False, "ends late": False}


def test_tests_that_only_hetsched_fails_need_a_documented_reason() -> None:
    expected = {"a": True, "b": True, "c": False, "d": True}
    comparison = Comparison("filters", expected, {"a": True, "b": False, "c": False})
    assert comparison.failed == ["b", "d"]  # d did not run with hetsched
    assert comparison.row == "| filters | 4 | 3 | 1 | 2 |"
    assert comparison.is_failed({"^b$": "a reason"})
    assert not comparison.is_failed({"^b$": "a reason", "^d$": "another"})
    shown = report([comparison], {"^b$": "a reason"}).splitlines()
    assert shown[-2:] == ["filters: b: documented: a reason", "filters: d: UNEXPLAINED"]


def test_set_without_passing_tests_is_failed() -> None:
    assert Comparison("filters", {}, {}).is_failed({})
    assert Comparison("filters", {"a": False}, {"a": False}).is_failed({})


def test_unknown_sets_are_rejected_before_anything_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.arguments(["filters", "nope"])
    assert ended.value.code == 2
    assert "Unknown set nope: use probes, filters," in capsys.readouterr().err


def test_replaced_function_keeps_used_imports_only() -> None:
    text = with_external_server(
        SOURCE, "\n// InitTestAPIServer connects.\nfunc InitTestAPIServer() {\n\tclientcmd.Build()\n}\n"
    )
    assert "cliflag" not in text
    assert '"k8s.io/kubernetes/pkg/features"' not in text
    for path in ("context", "k8s.io/klog/v2", "os", "k8s.io/client-go/tools/clientcmd"):
        assert text.count(f'"{path}"') == 1
    assert text.count("func InitTestAPIServer") == 1


def test_source_without_the_function_is_an_error() -> None:
    with pytest.raises(Unavailable, match="InitTestAPIServer"):
        with_external_server(SOURCE.replace("InitTestAPIServer", "Init"), "")


def test_documentation_lists_all_sets_and_differences() -> None:
    page = (ROOT / "docs/reference/upstream-tests.md").read_text()
    unwrapped = " ".join(page.split())
    assert [name for name in SETS if f"| `{name}` |" not in page] == []
    assert [reason for reason in DIFFERENCES.values() if reason not in unwrapped] == []
