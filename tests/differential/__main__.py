"""Compare hetsched with code of Kubernetes on random cases: `python3 dev.py differential [scheduler|devices|kubelet]`.

The suite `scheduler` compares with kube-scheduler on random clusters, the suite `devices` with its device allocation
on random clusters with devices, and the suite `kubelet` with the kubelet's resource managers on random nodes. Without a
suite, all run.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tests.kube import control_plane

from .summary import DEVICES, KUBELET, SCHEDULER, Suite, compare, minimal

SUITES: dict[str, Suite[Any]] = {"scheduler": SCHEDULER, "devices": DEVICES, "kubelet": KUBELET}
MOST_SHOWN = 3


def main() -> int:
    """Run the comparisons and print their counts; return 1 after unexplained differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="scheduler, devices or kubelet (default: all)")
    parser.add_argument("--cases", type=int, help="number of random cases of each suite")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first case")
    given = parser.parse_args()
    unknown = set(given.suites) - SUITES.keys()
    if unknown:
        parser.error(f"Unknown suite {', '.join(sorted(unknown))}: use {', '.join(SUITES)}.")
    return max(run(name, given.first, given.cases) for name in given.suites or SUITES)


def run(name: str, first: int, cases: int | None) -> int:
    """Run one suite; return 1 after unexplained differences, and 2 if its program is missing."""
    suite = SUITES[name]
    program = control_plane.find(suite.program)
    if program is None:
        print(f"The program {suite.program} is missing; build it with: make kube", file=sys.stderr)
        return 2
    with suite.start(program) as running:
        summary = compare(suite, running, range(first, first + (cases or suite.cases)), show_every=5000)
        for case, difference in summary.unexplained[:MOST_SHOWN]:
            print(minimal(suite, case, difference, running))
    print(f"{name}: {summary.cases:,} cases, {summary.pods:,} pods, Kubernetes {control_plane.VERSION}")
    for kind, count in sorted(summary.intended.items()):
        print(f"{count:,} intended differences {kind}")
    print(f"{len(summary.unexplained):,} unexplained differences")
    return 1 if summary.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
