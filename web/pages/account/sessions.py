"""Browser sessions of the user, with actions to end one session, or all except the current one.

The user agent is shown unchanged, and as a short name for common browsers.
"""

from __future__ import annotations

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from hetsched.access.models import BrowserSession
from hetsched.access.sessions import sessions_of
from hetsched.access.subject import subject_of
from web.api.account.sessions import current_digest

from ..actions import ActionButton, body_of
from ..shell import Shell, page

_ADDRESS = "/api/v1/sessions/end/"
# The order matters: most user agents also contain the names of later entries.
_BROWSERS = (
    ("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"),
)  # fmt: skip
_SYSTEMS = (
    ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)  # fmt: skip


def device(user_agent: str) -> str:
    """Return the short name of a browser and its system, or "" if the browser is unknown."""
    browser = next((name for sign, name in _BROWSERS if sign in user_agent), "")
    system = next((name for sign, name in _SYSTEMS if sign in user_agent), "")
    return _("%(browser)s on %(system)s") % {"browser": browser, "system": system} if browser and system else browser


def _end(row: BrowserSession) -> ActionButton:
    return ActionButton(
        label=_("End…"),
        url=_ADDRESS,
        title=_("End this session?"),
        text=_("The browser at %(address)s must log in again.") % {"address": row.address or "?"},
        confirm=_("End"),
        body=body_of({"id": row.name}),
        etag="",
        done=_("The session has ended."),
        tone="bad",
    )


def _end_others(others: int) -> ActionButton:
    text = ngettext(
        "%(count)d other session is logged out. This session continues.",
        "%(count)d other sessions are logged out. This session continues.",
        others,
    )
    return ActionButton(
        label=_("End all other sessions…"),
        url=_ADDRESS,
        title=_("Log out all other sessions?"),
        text=text % {"count": others},
        confirm=_("Log out other sessions"),
        body="{}",
        etag="",
        done=_("All other sessions are logged out."),
        tone="bad",
    )


@page("sessions")
def sessions(shell: Shell) -> HttpResponseBase:
    subject, here = subject_of(shell.request), current_digest(shell.request)
    rows = sessions_of(subject.user)
    others = sum(row.pk != here for row in rows)
    shown = [(row, device(row.browser), None if row.pk == here else _end(row)) for row in rows]
    return shell.render("sessions", {"rows": shown, "end_others": _end_others(others) if others else None})
