"""Compare hetsched with code of Kubernetes on random cases: `python3 dev.py differential [scheduler|devices|kubelet]`.

The suite `scheduler` compares with kube-scheduler on random clusters, the suite `devices` with its device allocation
on random clusters with devices, and the suite `kubelet` with the kubelet's resource managers on random nodes. Without a
suite, all run. The arguments are checked first, and then only the programs of these suites are built.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kube import control_plane

from .summary import DEVICES, KUBELET, SCHEDULER, Suite, compare, minimal

SUITES: dict[str, Suite[Any]] = {"scheduler": SCHEDULER, "devices": DEVICES, "kubelet": KUBELET}
MOST_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparisons and print their counts; return 1 after unexplained differences."""
    parser = argparse.ArgumentParser(prog="python3 dev.py differential", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="scheduler, devices or kubelet (default: all)")
    parser.add_argument("--cases", type=_positive, metavar="N", help="number of random cases of each suite")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first case")
    given = parser.parse_args(arguments)
    unknown = set(given.suites) - SUITES.keys()
    if unknown:
        parser.error(f'Unknown suite "{", ".join(sorted(unknown))}" (SUITE): use {", ".join(SUITES)}.')
    names = list(dict.fromkeys(given.suites or SUITES))
    try:
        programs = [control_plane.built(SUITES[name].program) for name in names]
    except control_plane.Unavailable as error:
        print(f"A program of the comparison is missing (build): {error}", file=sys.stderr)
        return 1
    return max(run(name, program, given.first, given.cases) for name, program in zip(names, programs, strict=True))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"The number of cases is {number}: use 1 or more.")
    return number


def run(name: str, program: Path, first: int, cases: int | None) -> int:
    """Run one suite; return 1 after unexplained differences."""
    suite = SUITES[name]
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
