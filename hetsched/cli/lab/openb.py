"""Options of `hetsched experiment openb` (lists, nodes, policies, loads), and their conversion to a study.

The nodes are read from `openb_node_list_gpu_node.csv` next to the first list, or from the files of `--cluster`. The
published figures are read from the folder of the first list, and omitted if the file is missing. A list has the name of
its file without `openb_pod_list_` and `.csv`. With one `--arrival`, the run is measured at this load and
every lower multiple of 0.1; with several, at exactly these loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hetsched.adapters.traces.openb_results import FILE, read_published
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import PodSpec

from ..options import choose_policies, compile_choice, read_inputs, read_sources

if TYPE_CHECKING:
    from hetsched.lab.experiments.openb import Published, Study

NODE_LIST = "openb_node_list_gpu_node.csv"
_SHOWN = (0.5, 0.8, 1.0)
_LOAD = 1.3
_SEEDS = 5

Lists = Annotated[
    list[str] | None,
    typer.Option("--list", metavar="FILE", help="Pod list; can be repeated (experiment openb).", show_default=False),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="Node list (experiment openb); default: the list in the folder of the pod list.",
        show_default=False,
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, max=1000, help="Number of random pod sequences per pod list (experiment openb).")
]
Arrival = Annotated[
    list[float] | None,
    typer.Option(
        metavar="X",
        help="Ratio of GPU demand to capacity, such as 1.3; repeat in ascending order; only for the experiment openb.",
        show_default=False,
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME|FILE",
        help="Policy to run; can be repeated to compare policies (experiment openb).",
        show_default=False,
    ),
]
Ties = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RULE",
        help="Tie-break rule (experiment openb): name, shuffled (shuffled names, as published) or random.",
        show_default=False,
    ),
]


class OpenbOptions(msgspec.Struct, frozen=True):
    """The options of the openb experiment, before validation."""

    lists: list[str]
    cluster: list[str]
    seeds: int
    arrival: list[float]
    policy: list[str]
    ties: list[str]

    def refuse(self, name: str) -> None:
        """Reject options that the experiment `name` would ignore.

        Raises: InputError `OptionNotTaken`.
        """
        given = {
            "--list": self.lists, "--cluster": self.cluster, "--arrival": self.arrival, "--policy": self.policy,
            "--ties": self.ties, "--seeds": self.seeds != _SEEDS,
        }  # fmt: skip
        for option, value in given.items():
            if value:
                raise InputError("OptionNotTaken", f"experiment {name} does not support {option}", place=option)

    def study(self) -> Study:
        """Read the files and validate everything before the run.

        Raises: InputError.
        """
        from hetsched.engine.framework.builtin_policies import BUILTIN
        from hetsched.lab.experiments.openb import POLICIES, Study

        if not self.lists:
            hint = "Use --list openb_pod_list_default.csv"
            raise InputError("ListsMissing", "a pod list is missing", place="--list", hint=hint)
        folder = Path(self.lists[0]).parent
        cluster = self.cluster or [str(folder / NODE_LIST)]
        lists: dict[str, tuple[PodSpec, ...]] = {}
        asked: Any = None
        for path in self.lists:
            nodes, asked = read_inputs(cluster, [path], option="--list")
            name = list_name(path)
            if name in lists:
                raise InputError("InputRepeated", f"list {name} is given twice", place=f"--list {path}")
            lists[name] = asked.pending
        specs = (
            choose_policies(self.policy, nodes, asked)[0] if self.policy else [BUILTIN[policy] for policy in POLICIES]
        )
        for spec in specs:
            compile_choice(spec)
        points, shown = _loads(self.arrival)
        return Study(
            nodes.nodes, lists, tuple(specs), self._ties(), self.seeds, points, shown, _published(folder / FILE)
        )

    def _ties(self) -> Any:
        from hetsched.lab.experiments.openb import TIES

        for rule in self.ties:
            if rule not in TIES:
                raise InputError(
                    "TiesUnknown", f"unknown tie-break {rule!r}: use one of {', '.join(TIES)}", place="--ties"
                )
        return tuple(dict.fromkeys(self.ties)) or TIES


def list_name(path: str) -> str:
    """Return the name of a list: `default` for openb_pod_list_default.csv."""
    return Path(path).name.removesuffix(".csv").removeprefix("openb_pod_list_")


def _loads(arrival: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the loads at which to measure, in ascending order, and the subset for which to report rows."""
    from hetsched.lab.arrival import MAX_RATIO

    for load in arrival:
        if not 0 < load <= MAX_RATIO:
            raise InputError(
                "ArrivalRatioInvalid",
                f"{load:g} is out of range: use more than 0 and at most {MAX_RATIO:g}",
                place="--arrival",
            )
    if len(arrival) > 1:
        points = tuple(sorted(set(arrival)))
        return points, points
    last = arrival[0] if arrival else _LOAD
    tenths = (step / 10 for step in range(1, round(10 * MAX_RATIO)))
    points = (*(tenth for tenth in tenths if tenth < last - 1e-9), last)
    return points, tuple(point for point in points if point in _SHOWN or point == last)


def _published(path: Path) -> dict[tuple[str, str], Published]:
    from hetsched.lab.experiments.openb import Published

    if not path.is_file():
        return {}
    ((name, data),) = read_sources([str(path)], "--list")
    return {key: Published(*figures) for key, figures in read_published(data, name).items()}
