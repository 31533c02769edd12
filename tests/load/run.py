"""`make load` and `make soak`: put load on a control plane of real processes and check the goals.

Exit code 0: every measured goal is reached. The report is written to `load.json` and `load.html`, or to `soak.…`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.load import planes
from tests.load.neighbours import neighbours
from tests.load.parts import flood, listeners, pace, soak
from tests.load.report import Part, text, write

SCENARIOS = ("burst", "steady", "sockets", "neighbours")


def main() -> int:
    """Run the requested scenarios; return the exit code."""
    asked = _read()
    found: list[Part] = []
    for backend in asked.backend:
        for scenario in ["soak"] if asked.scenario == ["soak"] else asked.scenario:
            # Use a new control plane for each scenario, so that its rows do not affect the next one.
            with planes.BACKENDS[backend](asked.nodes, webs=asked.web, workers=asked.workers) as plane:
                found.append(_run(plane, scenario, asked))
            sys.stdout.write(text(found[-1]) + "\n")
            sys.stdout.flush()
    name = "soak" if asked.scenario == ["soak"] else "load"
    write(found, asked.report, name)
    sys.stdout.write(f"\n{asked.report / name}.json and .html\n")
    return 0 if all(part.held for part in found) else 1


def _run(plane: planes.Plane, scenario: str, asked: argparse.Namespace) -> Part:
    if scenario == "burst":
        return flood(plane, asked.submissions, asked.clients)
    if scenario == "steady":
        return pace(plane, asked.rate, asked.seconds)
    if scenario == "sockets":
        return listeners(plane, asked.sockets, asked.updates, asked.seconds)
    if scenario == "neighbours":
        return neighbours(plane, asked.rate / 5, asked.seconds / 2)
    return soak(plane, asked.minutes, asked.rate / 2, fault_every_seconds=asked.fault_seconds)


def _read() -> argparse.Namespace:
    reader = argparse.ArgumentParser(prog="make load", description=__doc__)
    reader.add_argument("scenario", nargs="*", help=f"{', '.join(SCENARIOS)}, or soak alone (all but soak)")
    reader.add_argument("--backend", action="append", choices=list(planes.BACKENDS), help="repeat for both (both)")
    reader.add_argument("--report", type=Path, default=Path("build/load"), metavar="DIR", help="where to (build/load)")
    for name, default, meaning in (
        ("nodes", 1000, "of the cluster"),
        ("web", 2, "web processes"),
        ("workers", 1, "workers, of two processes each"),
        ("submissions", 10_000, "of the burst"),
        ("clients", 50, "of the burst"),
        ("sockets", 1000, "that listen"),
    ):
        reader.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} ({default})")
    for name, amount, meaning in (
        ("rate", 50.0, "submissions a second, steady; a soak takes half, neighbours a fifth"),
        ("updates", 5.0, "submissions a second that sockets hear of"),
        ("seconds", 60.0, "of a steady rate; of neighbours half, twice"),
        ("minutes", 30.0, "of a soak"),
        ("fault-seconds", 60.0, "between two kills of a soak"),
    ):
        reader.add_argument(f"--{name}", type=float, default=amount, help=f"{meaning} ({amount:g})")
    asked = reader.parse_args()
    asked.scenario = asked.scenario or list(SCENARIOS)
    asked.backend = asked.backend or list(planes.BACKENDS)
    known = [["soak"]] if "soak" in asked.scenario else [[item for item in asked.scenario if item in SCENARIOS]]
    if asked.scenario not in known:
        reader.error(f"scenarios are {', '.join(SCENARIOS)}, or soak alone")
    return asked


if __name__ == "__main__":
    sys.exit(main())
