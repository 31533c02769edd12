"""Map raw scores to 0-100 relative to the largest raw score.

Formula: floor(100 * score / largest), where `largest` is the largest score of a feasible node. If less is better, the
result is 100 minus this value. If `largest` is 0, every node gets 0, or 100 if less is better.
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
