"""The backoff queue: queued pods that stay out of the active queue until `not_before` after a failed try.

The back-off is 1 s after the first failed try, doubles with each further failed try, and is at most
`LONGEST_BACKOFF_SECONDS`.
"""

from __future__ import annotations

from datetime import timedelta

LONGEST_BACKOFF_SECONDS = 10


def backoff(attempts: int) -> timedelta:
    """Return the back-off after the n-th unsuccessful try."""
    return timedelta(seconds=min(2 ** max(attempts - 1, 0), LONGEST_BACKOFF_SECONDS))
