"""Where somebody is signed in with a browser: one's own, to be ended one by one or all but this one.

Rule: what a browser says of itself is shown as it is, and in short as far as it is one of those that most people have.
"""

from __future__ import annotations

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from hetsched.access.models import BrowserSession
from hetsched.access.sessions import sessions_of
from hetsched.access.subject import subject_of
from web.api.sessions import current

from .acting import Act, body_of
from .shell import Shell, page

_ADDRESS = "/api/v1/sessions/end/"
# In this order: most of them say that they are some of those behind them, too.
_BROWSERS = (
    ("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"),
)  # fmt: skip
_SYSTEMS = (
    ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)  # fmt: skip


def device(told: str) -> str:
    """Return a browser and its system in short; empty for one that is not known."""
    browser = next((name for sign, name in _BROWSERS if sign in told), "")
    system = next((name for sign, name in _SYSTEMS if sign in told), "")
    return _("%(browser)s on %(system)s") % {"browser": browser, "system": system} if browser and system else browser


def _end(row: BrowserSession) -> Act:
    return Act(
        label=_("End…"),
        url=_ADDRESS,
        title=_("End this session?"),
        text=_("The browser at %(address)s must log in again.") % {"address": row.address or "?"},
        confirm=_("End"),
        body=body_of({"id": row.name}),
        etag="",
        done=_("The session is over."),
        tone="bad",
    )


def _end_others(others: int) -> Act:
    text = ngettext(
        "%(count)d other browser must log in again. This one stays.",
        "%(count)d other browsers must log in again. This one stays.",
        others,
    )
    return Act(
        label=_("End all others…"),
        url=_ADDRESS,
        title=_("Log out everywhere else?"),
        text=text % {"count": others},
        confirm=_("Log out everywhere else"),
        body="{}",
        etag="",
        done=_("Only this browser is logged in now."),
        tone="bad",
    )


@page("sessions")
def sessions(shell: Shell) -> HttpResponseBase:
    subject, here = subject_of(shell.request), current(shell.request)
    rows = sessions_of(subject.user)
    others = sum(row.pk != here for row in rows)
    shown = [(row, device(row.browser), None if row.pk == here else _end(row)) for row in rows]
    return shell.render("sessions", {"rows": shown, "end_others": _end_others(others) if others else None})
