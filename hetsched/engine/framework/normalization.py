"""Map raw scores to 0-100 by the largest one.

Formula: floor(100 * score / largest over the feasible nodes), or 100 minus that if less is better. If the largest is
0, every node gets 0, or 100 if less is better.
Source: kube-scheduler's DefaultNormalizeScore (plugins/helper/normalize_score.go).
"""

from __future__ import annotations

import numpy as np

from hetsched.engine.cluster.columns import Bools, Floats

MAX_SCORE = 100.0


def by_largest(scores: Floats, feasible: Bools, *, less_is_better: bool = False) -> Floats:
    """Return normalised scores, shape (N,), 0-100 on the feasible rows; `scores` are whole numbers, 0 or more."""
    largest = float(scores.max(initial=0.0, where=feasible))
    share = np.floor(MAX_SCORE * scores / largest) if largest > 0 else np.zeros(len(scores))
    normal: Floats = MAX_SCORE - share if less_is_better else share
    return normal
