"""`submissions/`: many manifests in one request, each with its own result.

The server accepts or rejects every item as if it were sent alone, in request order and in its own transaction. Status
202 means that all items were accepted, and 207 that the client has to check each result. With `allOrNothing` all items
are one transaction: if an item is invalid, the server still checks the others, writes nothing, and responds with a
problem document that lists every invalid item. The server takes all locks of the items before it writes, in one global
order, so two batches cannot deadlock.
An item without its own key is identified by the request's Idempotency-Key and its index, so a client can repeat a batch
after any failure: accepted items return their first result, and the others are tried again. Each item is counted as a
submission by the sender's rate limit.
Invariant: if the storage fails, the batch fails with that error; the response never contains a result that was not
written.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.contracts.api.workload import ItemAnswer, ItemProblem, PodState
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.node_loads import Conflict
from hetsched.placement.models import Hold
from hetsched.placement.quotas import lock_names
from hetsched.storage.named_locks import lock, retry_on_deadlock
from hetsched.storage.write_lock import write_transaction

from .. import bodies
from ..documents import Document, Request
from ..problems import RequestRefused, refusal_of
from ..rates import SUBMIT, max_submissions, take_token
from ..views import ApiView, answer
from .submissions import ParsedSubmission, Submit, accept_parsed, check_key, idempotency_key, parse_submission

MOST_ITEMS = 500
MOST_TOGETHER = 100  # maximum number of items in one transaction, because other writers wait for it
LONGEST_KEY = 250  # leaves space for the item index that is appended to the key


class BatchItem(Submit, frozen=True):
    """One submission of a batch; with `key` it can be retried safely at any position of a later batch."""

    key: str = ""


class Batch(Request, frozen=True):
    """Submissions in order; `cluster`, `policy`, `priority` and `callbackUrl` are defaults for items that do not set
    them.
    """

    items: tuple[BatchItem, ...]
    all_or_nothing: bool = False
    cluster: str = ""
    policy: str = ""
    priority: int | None = None
    callback_url: str = ""


class BatchAnswer(Document, frozen=True):
    """Results of all items in request order."""

    accepted: int
    refused: int
    items: list[ItemAnswer]


class BatchSubmissionsView(ApiView):
    actions: ClassVar = {"POST": Action.SUBMIT}
    within: ClassVar = ("POST",)
    keyed: ClassVar = ("POST",)

    @extend_schema(request=Batch, responses={202: BatchAnswer, 207: BatchAnswer})
    def post(self, request: Any) -> HttpResponse:
        """Submit many manifests in one request."""
        key = idempotency_key(request)
        if len(key) > LONGEST_KEY:
            raise InputError(
                "IdempotencyKeyInvalid",
                Message("the key of a batch must have at most {n} characters", n=LONGEST_KEY),
                place="Idempotency-Key",
                hint="Send a shorter key, such as a UUID",
            )
        batch = bodies.read(request, Batch, large=True)
        _check(batch)
        most = max_submissions(SUBMIT, self.subject)
        if most is not None and len(batch.items) > most:
            template = "{n} items exceed the {m} that you may submit in one request"
            message = Message(template, n=len(batch.items), m=most)
            raise InputError("BatchSize", message, place="items", hint="Send several smaller batches")
        self.headers |= take_token(SUBMIT, self.subject, len(batch.items))
        items = [(index, _with_defaults(item, batch), item.key) for index, item in enumerate(batch.items)]
        submit = _submit_together if batch.all_or_nothing else _submit_each
        answers = submit(items, self.subject, key)
        refused = sum(item.problem is not None for item in answers)
        document = BatchAnswer(len(answers) - refused, refused, answers)
        return answer(request, document, status=207 if refused else 202)


_Items = list[tuple[int, Submit, str]]
_Looked = ParsedSubmission | ItemAnswer


def _check(batch: Batch) -> None:
    most = MOST_TOGETHER if batch.all_or_nothing else MOST_ITEMS
    if not 1 <= len(batch.items) <= most:
        message = Message("a batch must have 1 to {n} items, not {m}", n=most, m=len(batch.items))
        raise InputError("BatchSize", message, place="items")
    keys: set[str] = set()
    for index, item in enumerate(batch.items):
        if item.key in keys:
            raise InputError(
                "IdempotencyKeyInvalid", "an earlier item of the batch has the same key", place=f"items[{index}].key",
                hint="Give each item its own key",
            )  # fmt: skip
        if item.key:
            check_key(item.key, f"items[{index}].key")
            keys.add(item.key)
        if item.plan and batch.all_or_nothing:
            raise InputError(
                "PlanNotPossible", "a batch with allOrNothing cannot contain plans", place=f"items[{index}].plan",
                hint="Submit the plan alone, or without allOrNothing",
            )  # fmt: skip


def _with_defaults(item: BatchItem, batch: Batch) -> Submit:
    own = {name: getattr(item, name) for name in Submit.__struct_fields__}
    own["priority"] = batch.priority if item.priority is None else item.priority
    for name in ("cluster", "policy", "callback_url"):
        own[name] = own[name] or getattr(batch, name)
    return Submit(**own)


def _submit_each(items: _Items, subject: Subject, request_key: str) -> list[ItemAnswer]:
    found = []
    for index, item, own_key in items:
        key = _key(index, own_key, request_key)
        found.append(_submit_item(index, _parse_item(index, item, own_key, key, subject), own_key, key, subject))
    return found


def _submit_together(items: _Items, subject: Subject, request_key: str) -> list[ItemAnswer]:
    keys = [_key(index, own_key, request_key) for index, _, own_key in items]
    looked = [
        _parse_item(index, item, own_key, key, subject) for (index, item, own_key), key in zip(items, keys, strict=True)
    ]
    return retry_on_deadlock(lambda: _submit_all(items, looked, keys, subject))


def _submit_all(items: _Items, looked: list[_Looked], keys: list[str], subject: Subject) -> list[ItemAnswer]:
    """Write all items, or none. Raises: RequestRefused `BatchRefused`."""
    with write_transaction():
        _take_locks([one for one in looked if isinstance(one, ParsedSubmission)], keys, subject)
        answers = [
            _submit_item(index, one, own_key, key, subject)
            for (index, _, own_key), one, key in zip(items, looked, keys, strict=True)
        ]
        wrong = tuple(item.problem for item in answers if item.problem is not None)
        if not wrong:
            return answers
        first = wrong[0]
        template = "nothing was submitted: {n} of {m} items were rejected"
        raise RequestRefused(
            422, "BatchRefused", Message(template, n=len(wrong), m=len(items)),
            place=f"items[{first.index}]", hint="Fix the rejected items, or omit allOrNothing",
            members={"items": wrong},
        )  # fmt: skip


def _take_locks(looked: list[ParsedSubmission], keys: list[str], subject: Subject) -> None:
    """Take the locks of these submissions (counters, keys, topics, quotas) until the end of the transaction."""
    owner = subject.owner
    names = {f"key {owner} {key}" for key in keys if key}
    for submission in looked:
        names |= {f"batch {submission.cluster.pk}"} | lock_names(
            submission.cluster.pk, {pod.namespace for pod in submission.pods}, owner
        )
    lock(names)
    holds = {submission.asked.hold for submission in looked if submission.asked.hold}
    list(Hold.objects.select_for_update().filter(pk__in=holds).order_by("pk").values_list("pk"))


def _key(index: int, own_key: str, request_key: str) -> str:
    # A valid client key contains no blank, so it cannot equal a derived key.
    return own_key or (f"{request_key} {index}" if request_key else "")


def _parse_item(index: int, item: Submit, own_key: str, key: str, subject: Subject) -> _Looked:
    """Parse one item. An error that the client has to fix is returned as the result of the item."""
    try:
        return parse_submission(item, subject, key, _identity(item))
    except (InputError, RequestRefused, Conflict) as error:
        return _refusal(index, own_key, error)


def _submit_item(index: int, looked: _Looked, own_key: str, key: str, subject: Subject) -> ItemAnswer:
    """Submit one item. An error that the client has to fix is returned as its result; internal errors are raised."""
    if isinstance(looked, ItemAnswer):
        return looked
    try:
        done = accept_parsed(looked, subject, key, _identity(looked.asked))
    except (InputError, RequestRefused, Conflict) as error:
        return _refusal(index, own_key, error)
    said = done.response
    return ItemAnswer(
        index, 202, key=own_key, id=done.workload_id, state=said["state"],
        pods=tuple(PodState(**pod) for pod in said["pods"]), replayed=done.replayed, warnings=looked.warnings,
    )  # fmt: skip


def _refusal(index: int, own_key: str, error: Exception) -> ItemAnswer:
    refused = refusal_of(error)
    problem = ItemProblem(index, refused.status, refused.code, refused.detail, refused.place, refused.hint)
    return ItemAnswer(index, refused.status, key=own_key, problem=problem)


def _identity(item: Submit) -> str:
    return sha256(encode(["submissions", item])).hexdigest()


routes = [path("submissions/", BatchSubmissionsView.as_view())]
