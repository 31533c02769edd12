"""Compare hetsched with kube-scheduler's own code on random clusters: `python3 dev.py differential [--cases N]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import msgspec
import yaml

from tests.kube import control_plane

from .clusters import Case, draw
from .comparison import Difference, differences
from .shrinking import shrink
from .verdicts import KubeScheduler

MOST_SHOWN = 3


class Summary(msgspec.Struct):
    """Counts of a comparison: cases, judged pods, intended differences by name, and the unexplained ones."""

    cases: int = 0
    pods: int = 0
    intended: Counter[str] = msgspec.field(default_factory=Counter)
    unexplained: list[tuple[Case, Difference]] = []


def compare(scheduler: KubeScheduler, seeds: range, show_every: int = 0) -> Summary:
    """Compare all cases of these seeds."""
    summary = Summary(unexplained=[])
    for seed in seeds:
        case = draw(seed)
        summary.cases += 1
        summary.pods += len(case.pods)
        for difference in differences(case, scheduler):
            if difference.name:
                summary.intended[difference.name] += 1
            else:
                summary.unexplained.append((case, difference))
        if show_every and summary.cases % show_every == 0:
            print(f"{summary.cases:,} cases", file=sys.stderr)
    return summary


def minimal(case: Case, difference: Difference, scheduler: KubeScheduler) -> str:
    """Return a minimal cluster and pod with an unexplained difference of the same kind, as YAML."""

    def differs(smaller: Case) -> bool:
        try:
            found = differences(smaller, scheduler)
            return any(not each.name and each.kind == difference.kind for each in found)
        except Exception:  # an invalid object: the reader of either side rejects it
            return False

    alone = msgspec.structs.replace(case, pods=[difference.pod])
    small = shrink(alone, differs) if differs(alone) else case
    found = [each.text for each in differences(small, scheduler) if not each.name]
    comments = "".join(f"# {text}\n" for text in found)
    return f"# seed {case.seed}\n{comments}{yaml.safe_dump_all([*small.objects, *small.pods], sort_keys=False)}"


def main() -> int:
    """Run the comparison and print its counts; return 1 after unexplained differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="number of random clusters")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first cluster")
    given = parser.parse_args()
    program = control_plane.find(control_plane.VERDICTS)
    if program is None:
        print("The program with kube-scheduler's code is missing; build it with: make kube", file=sys.stderr)
        return 2
    with KubeScheduler(program) as scheduler:
        summary = compare(scheduler, range(given.first, given.first + given.cases), show_every=5000)
        for case, difference in summary.unexplained[:MOST_SHOWN]:
            print(minimal(case, difference, scheduler))
    print(f"{summary.cases:,} clusters, {summary.pods:,} pods, Kubernetes {control_plane.VERSION}")
    for name, count in sorted(summary.intended.items()):
        print(f"{count:,} intended differences {name}")
    print(f"{len(summary.unexplained):,} unexplained differences")
    return 1 if summary.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
