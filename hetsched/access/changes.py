"""Publish changes of access rights to every process, so that open sockets check their rights again.

A change or deletion of a token, an account or a role assignment, and the end of a session, raise the revision of the
topic `access` in the same transaction. REST checks rights at every request and does not need an event. Sockets also
check every 30 seconds, which covers changes that bypass the models (`QuerySet.update`). No model signal is used for
sessions: the module `sessions` publishes the end of each session that was in use, and deletes the rows of ended
sessions without reading them.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db.models.signals import m2m_changed, post_delete, post_save

from hetsched.journal.publish import publish
from hetsched.storage.write_lock import write_transaction

TOPIC = "access"
_ID = "hetsched.access.changes"


def publish_rights_change() -> None:
    """Make every open socket check its rights again."""
    with write_transaction():
        publish(TOPIC, {})


def listen() -> None:
    """Connect to the signals of models that affect rights; called once, when the app is ready."""
    from .models import Token

    users = get_user_model()
    changing: tuple[Any, ...] = (Token, users)
    for model in changing:
        post_save.connect(_on_save, sender=model, dispatch_uid=f"{_ID} {model.__name__} saved")
    for model in (*changing, Group):
        post_delete.connect(_on_delete, sender=model, dispatch_uid=f"{_ID} {model.__name__} gone")
    m2m_changed.connect(_on_membership_change, sender=users.groups.through, dispatch_uid=f"{_ID} groups")


def _on_save(created: bool, update_fields: Any, raw: bool, **_signal: Any) -> None:
    if not (created or raw or (update_fields is not None and set(update_fields) <= {"last_login", "ending"})):
        publish_rights_change()


def _on_delete(**_signal: Any) -> None:
    publish_rights_change()


def _on_membership_change(action: str, **_signal: Any) -> None:
    if action in ("post_remove", "post_clear", "post_add"):
        publish_rights_change()
