"""Run Kubernetes' own scheduling tests with kube-scheduler and with hetsched: `python3 dev.py upstream [SET]...`.

Each set runs at the same time on two control planes, one for each scheduler. The table shows the results. The exit code
is 1 if hetsched alone fails a test that docs/reference/upstream-tests.md does not name.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kube import control_plane
from tests.kube.control_plane import ControlPlane, Unavailable

from . import clusters, probes, programs
from .results import Comparison, of_go_log, of_junit, report
from .sets import DIFFERENCES, SETS, Set

_E2E_MINUTES, _INTEGRATION_MINUTES = 120, 60
_REPORT_SECONDS = 120


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; exit with 2 if a set is unknown."""
    names = "".join(f"\n  {name:11} {chosen.title}" for name, chosen in SETS.items())
    parser = argparse.ArgumentParser(
        prog="dev.py upstream", description=f"{__doc__}\nSets:{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("sets", nargs="*", metavar="SET", help="default: all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep logs and reports in this folder")
    given = parser.parse_args(words)
    if unknown := [name for name in given.sets if name not in SETS]:
        parser.error(f"Unknown set {', '.join(unknown)}: use {', '.join(SETS)}.")
    return given


def main() -> int:
    given = arguments()
    names = list(dict.fromkeys(given.sets)) or list(SETS)
    try:
        control_plane.build(["kube-apiserver"])
        programs.build(sorted(_needed(names)))
    except Unavailable as error:
        print(f"The tests cannot run: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="hetsched-upstream-") as temporary:
        folder = (given.keep or Path(temporary)).resolve()
        compared = [_compare(name, SETS[name], folder / name) for name in names]
    print(f"Kubernetes {control_plane.API_SERVER}\n\n{report(compared, DIFFERENCES)}")
    return 1 if any(comparison.is_failed(DIFFERENCES) for comparison in compared) else 0


def _needed(names: Sequence[str]) -> set[str]:
    needed = {programs.SCHEDULER, *(program for name in names for program, _, _ in SETS[name].runs)}
    return needed | ({programs.CONTROLLER_MANAGER} if programs.E2E in needed else set())


def _compare(name: str, chosen: Set, folder: Path) -> Comparison:
    print(f"Running {name}: {chosen.title} …", flush=True)
    with ThreadPoolExecutor(len(clusters.SCHEDULERS)) as pool:
        run = functools.partial(_results, chosen, folder)
        expected, actual = pool.map(run, clusters.SCHEDULERS)
    comparison = Comparison(name, expected, actual)
    print(comparison.row, flush=True)
    return comparison


def _results(chosen: Set, folder: Path, scheduler: str) -> dict[str, bool]:
    """Run a set with one scheduler."""
    place = folder / scheduler
    with clusters.running(chosen, scheduler, place) as plane:
        if not chosen.runs:
            return probes.results(plane)
        results: dict[str, bool] = {}
        for program, selected, skipped in chosen.runs:
            run = _end_to_end if program == programs.E2E else _integration
            results |= run(plane, place, program, selected, skipped)
        return results


def _integration(plane: ControlPlane, folder: Path, program: str, selected: str, skipped: str) -> dict[str, bool]:
    words = [str(programs.path_of(program)), "-test.v", f"-test.timeout={_INTEGRATION_MINUTES}m"]
    words += [f"-test.run={selected}"] if selected else []
    words += [f"-test.skip={skipped}"] if skipped else []
    # The tests start an etcd unless this port accepts connections; the copied tests do not call it.
    env = {
        "UPSTREAM_KUBECONFIG": str(folder / "kubeconfig"),
        "KUBE_INTEGRATION_ETCD_URL": f"http://127.0.0.1:{plane.port}",
    }
    log = folder / f"{program.replace('/', '_')}.log"
    _wait(words, log, env, minutes=_INTEGRATION_MINUTES + 1)
    return of_go_log(log.read_text(errors="replace"))


def _end_to_end(plane: ControlPlane, folder: Path, program: str, selected: str, skipped: str) -> dict[str, bool]:
    words = [
        str(programs.path_of(program)), f"--kubeconfig={folder}/kubeconfig", "--provider=skeleton",
        f"--num-nodes={clusters.NODES}", "--allowed-not-ready-nodes=0", f"--ginkgo.focus={selected}",
        f"--ginkgo.timeout={_E2E_MINUTES}m", "--ginkgo.v", "--ginkgo.no-color", "--ginkgo.seed=1",
        "--dump-logs-on-failure=false", "--disable-log-dump", f"--report-dir={folder}",
    ]  # fmt: skip
    words += [f"--ginkgo.skip={skipped}"] if skipped else []
    _wait(words, folder / "e2e.log", {}, minutes=_E2E_MINUTES + 5)
    return of_junit(folder / "junit_01.xml")


def _wait(words: Sequence[str], log: Path, env: dict[str, str], *, minutes: int) -> None:
    """Run tests; interrupt them after the timeout, because they write their report then."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, cwd=log.parent, env=clusters.environment() | env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_REPORT_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
