"""Database calls of sockets; each read is one call in the thread that Channels reserves for database calls."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from django.utils import translation

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import from_column
from hetsched.journal.models import OutboxEvent, Topic
from hetsched.journal.publish import closed_topics, message, revision_of
from hetsched.placement import actions
from hetsched.placement.models import Workload
from hetsched.placement.queries import topics
from hetsched.placement.queries.redaction import Redaction
from hetsched.placement.queries.redaction_scan import out_of_scope_names
from hetsched.storage.batches import batched
from web.api.monitoring.prometheus import OUT_OF_SCOPE
from web.translation import translate, with_summaries

from .database import QueryBatcher, in_database, in_own_thread
from .hub import SnapshotMessage
from .rights import Denied

FRAMES = 64  # maximum number of translated messages in the cache


class TopicLookup(msgspec.Struct, frozen=True):
    """Result of resolving a topic: the name that the client sent and the published name; `namespaces` are the
    namespaces of a workload's pods and objects. A topic that is not `open` has no events yet.
    """

    asked: str
    topic: str = ""
    namespaces: frozenset[str] = frozenset()
    open: bool = True
    denied: Denied | None = None


def find(asked: str) -> TopicLookup:
    """Resolve the topic name that a client sent."""
    try:
        if "\0" in asked or len(asked) > 400:
            raise topics.unknown_topic(asked)
        topic = topics.resolve_topic(asked)
    except InputError as error:
        return TopicLookup(asked, denied=Denied(error.code, error.message, error.hint))
    namespaces: frozenset[str] = frozenset()
    kind, _, key = topic.partition(":")
    if kind == "workload":
        workload = Workload.objects.get(pk=key)
        made_of = (workload.pods, workload.objects_there)
        namespaces = frozenset(
            name for rows in made_of for name in rows.order_by().values_list("namespace", flat=True).distinct()
        )
    return TopicLookup(asked, topic, namespaces, open=not closed_topics([topic]))


resolve = QueryBatcher(find)


open_topic = QueryBatcher(actions.open_topic, in_own_thread)


@in_database
def snapshot(topic: str) -> SnapshotMessage | None:
    """Return a topic's whole document as message text, or None if the topic no longer exists."""
    try:
        found = topics.snapshot(topic)
    except InputError:
        return None
    return SnapshotMessage(found.revision, message(topic, found.revision, found.data, "snapshot"))


@in_database
def revisions(names: list[str]) -> dict[str, int]:
    """Return the latest revision of each of these topics."""
    found: dict[str, Any] = {}
    for some in batched(names):
        found.update(Topic.objects.filter(name__in=some).values_list("name", "revision"))
    return found


@in_database
def recent(topic: str, most: int) -> tuple[int, list[tuple[int, str]]]:
    """Return the latest revision of a topic, and its latest events as message texts."""
    newest = revision_of(topic)
    rows = OutboxEvent.objects.filter(topic=topic, revision__lte=newest).order_by("-revision")
    events = list(rows.values_list("revision", "data")[:most])
    return newest, [(revision, message(topic, revision, data)) for revision, data in events]


@in_database
def watch(topic: str, text: str, own: frozenset[str]) -> None:
    """Check a message to a socket that is limited to the namespaces `own`, and count it as a metric if it names a pod
    in another namespace.
    """
    if out_of_scope_names(text.encode(), own, topic.encode()):
        OUT_OF_SCOPE.labels(f"live:{topic.partition(':')[0]}").inc()


def redacted(topic: str, text: str, own: frozenset[str] | None) -> str:
    """Return a message of a topic for a socket, redacted if the socket is limited to the namespaces `own`.

    Of the topics that a limited socket may subscribe to, only the topics of workloads contain texts that may name pods
    in other namespaces. The topic stores these texts with their parameters, so they can be redacted.
    """
    if not topic.startswith("workload:"):
        return text
    whole = msgspec.json.decode(text)
    pods = (whole.get("data") or {}).get("pods") or {}
    redaction = Redaction(own)
    said = [pod for pod in pods.values() if pod and pod.get("message")]
    for pod in said:
        pod["message"] = redaction.message(from_column(pod["message"]))
    return encode(whole).decode() if said else text


def in_language(topic: str, text: str, language: str) -> str:
    """Return a message with its summaries or its reason translated into the language of a socket."""
    if topic == topics.DECISIONS and not language.startswith("en"):
        return _with_summaries(text, language)
    return _with_reason(text, language) if topic.startswith("watch:") else text


@lru_cache(maxsize=FRAMES)
def _with_summaries(text: str, language: str) -> str:
    """Return a message of the topic `decisions` with translated summaries; the result is cached for all sockets."""
    whole = msgspec.json.decode(text)
    with translation.override(language):
        whole["data"] = with_summaries(whole["data"])
    return encode(whole).decode()


def _with_reason(text: str, language: str) -> str:
    """Return a message about the age of a cluster's data with its reason translated; the topic stores the reason with
    its parameters.
    """
    whole = msgspec.json.decode(text)
    data = whole.get("data") or {}
    if data.get("reason"):
        with translation.override(language):
            data["reason"] = translate(from_column(data["reason"]))
    return encode(whole).decode()


def renamed(text: str, topic: str, asked: str) -> str:
    """Return a message with the topic name that the client used; the name is the first field of the message."""
    head = b'{"topic":' + encode(topic)
    return '{"topic":' + encode(asked).decode() + text[len(head.decode()) :]
