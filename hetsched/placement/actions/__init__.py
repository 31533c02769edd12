"""Lives here: the only writers of workloads, pods, decisions and reservations; each action is one transaction.

May import: what hetsched.placement may.
Never: an engine run or an outside call inside a transaction.
"""

from hetsched.inventory.ledger import Conflict, Contradiction

from .believing import approve_fact
from .creating import submit_there
from .extending import book_asked
from .following import Followed, follow
from .handing import CardsFollowed, follow_actual_cards
from .progress import begin_binding, cancel, confirm, reject, release, retry, set_priority, start
from .recording import Nominated, Result, bindable, record
from .retention import forget_charged, forget_finished, forget_summaries
from .submitting import Submission, submit
from .transfer import export_cluster, import_cluster

__all__ = [
    "CardsFollowed",
    "Conflict",
    "Contradiction",
    "Followed",
    "Nominated",
    "Result",
    "Submission",
    "approve_fact",
    "begin_binding",
    "bindable",
    "book_asked",
    "cancel",
    "confirm",
    "export_cluster",
    "follow",
    "follow_actual_cards",
    "forget_charged",
    "forget_finished",
    "forget_summaries",
    "import_cluster",
    "record",
    "reject",
    "release",
    "retry",
    "set_priority",
    "start",
    "submit",
    "submit_there",
]
