"""The best nodes of pods that the compiled loop placed, as `explain.decision_matrix.best` returns them."""

from __future__ import annotations

from hetsched.contracts.api.decision import NodeOutcome, PluginScore
from hetsched.engine.cluster.columns import Ints

from .loop_arrays import BatchDecisions
from .plans import Plans


def best_nodes(
    plans: Plans, keys: list[str], positions: Ints, decided: BatchDecisions
) -> list[tuple[NodeOutcome, ...]]:
    """Return the best nodes of each pod, best first, with their scores.

    `keys` are the keys of the pods, `positions` (P,) the positions of their shapes.
    """
    names, count = plans.state.columns.names, len(keys)
    all_rows, all_totals = decided.best_rows[:count].tolist(), decided.best_totals[:count].tolist()
    all_scores = decided.best_scores[:count].tolist()
    found: list[tuple[NodeOutcome, ...]] = []
    for key, position, rows, totals, scores in zip(
        keys, positions.tolist(), all_rows, all_totals, all_scores, strict=True
    ):
        sources = plans.score_sources(position)
        nodes: list[NodeOutcome] = []
        for row, total, of_terms in zip(rows, totals, scores, strict=True):
            if row < 0:
                break
            given: list[PluginScore] = []
            for plugin, weight, of_nodes, term in sources:
                score = of_terms[term] if of_nodes is None else float(of_nodes[row])
                given.append(PluginScore(plugin, score, score, weight, weight * score))
            nodes.append(NodeOutcome(names[row], key, True, None, tuple(given), total, len(nodes) + 1))
        found.append(tuple(nodes))
    return found
