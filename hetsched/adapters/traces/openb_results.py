"""Published results of the openb study, as stored with its lists.

A file has one row for each trace and policy. Its columns `alloc_pct_at_<load>` and `frag_*_at_<load>` are in percent of
all GPUs, and the load is in percent of the capacity. Other columns and empty cells are ignored. Policy names are mapped
to hetsched's names.
Source: `fgd_published_results.csv`, averaged from the expected results of hkust-adsl/kubernetes-scheduler-simulator.
"""

from __future__ import annotations

import csv
import re

from hetsched.contracts.errors import InputError

FILE = "fgd_published_results.csv"
POLICIES = {
    "01-Random": "random",
    "02-DotProd": "dot-product",
    "03-GpuClustering": "gpu-clustering",
    "04-GpuPacking": "gpu-packing",
    "05-BestFit": "best-fit",
    "06-FGD": "fgd",
}
_COLUMN = re.compile(r"(alloc_pct_at|at|frag_pct_of_total_gpu_at|frag_at)_(\d{2,3})")


Figures = dict[int, float]


def read_published(data: bytes, name: str) -> dict[tuple[str, str], tuple[Figures, Figures]]:
    """Return, by (trace, policy), the shares of allocated and of fragmented GPUs in percent of all GPUs.

    Each share is a mapping whose keys are loads in percent of the capacity.

    Raises: InputError `TraceHeaderInvalid` or `TraceRowInvalid`.
    """
    rows = list(csv.reader(data.decode("utf-8-sig", errors="replace").splitlines()))
    header = rows[0] if rows else []
    if header[:2] != ["trace", "policy"]:
        raise InputError("TraceHeaderInvalid", "the header does not begin with trace,policy", place=f"{name}:1")
    found: dict[tuple[str, str], tuple[Figures, Figures]] = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            message = f"the row has {len(row)} cells, the header {len(header)}"
            raise InputError("TraceRowInvalid", message, place=f"{name}:{number}")
        allocated: Figures = {}
        fragmented: Figures = {}
        for column, cell in zip(header, row, strict=True):
            named = _COLUMN.fullmatch(column)
            if named is None or not cell:
                continue
            try:
                (fragmented if "frag" in column else allocated)[int(named[2])] = float(cell)
            except ValueError:
                raise InputError(
                    "TraceRowInvalid", f"{cell[:40]!r} is not a number", place=f"{name}:{number} {column}"
                ) from None
        found[row[0], POLICIES.get(row[1], row[1])] = (allocated, fragmented)
    return found
