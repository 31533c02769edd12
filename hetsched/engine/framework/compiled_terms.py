"""Declarations by which a plugin lets the compiled loop run it.

A plugin declares these attributes of its class:
    compiled_term          its score, as formulas over stretches of nodes
    compiled_filter        its filter: a filter built into the loop, or formulas that exclude nodes
    compiled_reserve       how the loop gets the allocation that `reserve` would return
    evicts_lower_priority  true if its PostFilter selects only victims of lower priority than the pod, and only for pods
                           that allow preemption
A formula is a function marked with `loop_function`. Its parameters are:
    total (n,)   totals of a stretch of nodes; a formula adds `weight * score`, or sets refused nodes to -inf
    weight       weight of the plugin in the policy
    nodes        the stretch: `static` and `load` are the blocks of columns, `first` and `last` its bounds in them,
                 `rows` (n,) the rows of the cluster, `cards_milli_free` (n,) the sum of the free milli-GPUs of each
                 node, if the term lists it in `fields`
    at           first row of each field in its block (`compiled.terms.FieldRows`)
    delta        (L,) the pod's contribution to a load column
    extra        (4,) the pod's expected use minus its requests
    given        the numbers that `inputs` returned for the shape, padded with zeros
    cards        a tuple: usable GPUs per node as bit sets (n,), value of each GPU (G, N), and the blocks `static` and
                 `load` for all nodes
It may call other marked functions and NumPy; `compiled.machine_code` compiles them when a batch first needs them. To
record the scores of single nodes, the loop calls the formula of a score with a weight of 1 and a stretch of one node.
Invariants: a formula equals the plugin's NumPy method bit for bit: same integers, same floating-point operations in
the same order. Excluded nodes keep -inf.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from hetsched.contracts.objects.workload import GpuDemand, Shape
from hetsched.engine.cluster.columns import Floats

from .status import Skip

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.gpu.eligibility import CardDemand

    from .request import Request

MOST_NUMBERS = 8
"""Maximum number of numbers that a formula gets per shape."""

Formula = Callable[[Any, float, Any, Any, Any, Any, Any, Any], None]
F = TypeVar("F", bound=Callable[..., Any])


def loop_function(function: F) -> F:
    """Mark a function that the compiled loop calls; the function itself remains a plain Python function."""
    vars(function)["loop_function"] = True
    return function


class FiltersCards(Protocol):
    """Filter for which the loop itself chooses the GPUs (`BuiltinFilter.CARDS`)."""

    def card_demand(self, demand: GpuDemand, state: ClusterState) -> CardDemand:
        """Return the demand reduced to the facts of a GPU that this filter checks."""

    @property
    def checks_every_fact(self) -> bool:
        """Return whether this filter checks every fact of a GPU that a demand can name."""


class FormulaInput(NamedTuple):
    """Formula for one shape, with at most `MOST_NUMBERS` numbers as its input."""

    formula: Formula
    numbers: Sequence[float] = ()


def _same_for_all(shape: Shape) -> None:
    return None


class CompiledTerm(NamedTuple):
    """Score or filter of a plugin as formulas.

    `inputs(plugin, request, state, cards)` selects the formula of a shape, with numbers from the plugin's parameters
    and the result of its PreScore or PreFilter; `cards` is the policy's GPU filter, if any. `inputs` returns SKIP if
    the plugin skips the shape, and None if no formula covers these parameters; the shape is then left to the scheduling
    cycle. Shapes with the same `key` get the same input. `fields` are the fields that a formula reads in addition to
    allocatable and requested CPU and memory. The entry `allocatable` covers only the resources with measured use, and
    `cards_milli_free` the sum of each node's free milli-GPUs, which is not a field.
    `card_worth(plugin, state)` returns the value of each GPU, (G, N); at most one plugin of a policy may define it.
    """

    formulas: tuple[Formula, ...]
    inputs: Callable[[Any, Request, ClusterState, FiltersCards | None], FormulaInput | Skip | None]
    fields: tuple[str, ...] = ()
    key: Callable[[Shape], Hashable] = _same_for_all
    card_worth: Callable[[Any, ClusterState], Floats] | None = None


class BuiltinFilter(enum.Enum):
    """Filters built into the compiled loop.

    RESOURCES: the node has enough of every requested resource, GPUs excepted if the policy has a CARDS filter.
    CARDS: the node has enough GPUs for the demand (`FiltersCards`).
    """

    RESOURCES = "resources"
    CARDS = "cards"


class LoopReserve(enum.Enum):
    """Reserve plugins that the loop does not call, because they reject no node that their filter accepts.

    NOTHING: `reserve` returns no allocation for a pod that the loop places. CARDS: the loop assigns the GPUs.
    """

    NOTHING = "nothing"
    CARDS = "cards"


class SharedReservation(NamedTuple):
    """Reserve plugin whose allocation depends only on the pod's demand and the kind of node; it rejects no node.

    `demand(shape)` returns the part of the shape that determines the allocation. `field` is the static field that
    determines the kind of a node.
    """

    demand: Callable[[Shape], Hashable]
    field: str


CompiledReserve = LoopReserve | SharedReservation
