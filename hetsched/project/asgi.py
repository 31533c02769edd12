"""The ASGI application: HTTP to Django, WebSockets to the live pages, the doors in front of both."""

from __future__ import annotations

import os

import django
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.sessions import CookieMiddleware

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")
django.setup(set_prefix=False)

# What follows imports models, which exist only once Django is set up.
from django.conf import settings  # noqa: E402

from hetsched.journal import publish  # noqa: E402
from hetsched.placement import dispatch, topics  # noqa: E402
from web.live.routing import websocket_urlpatterns  # noqa: E402

from .doors import BodyCap, SameOrigin  # noqa: E402
from .handler import ThreadedHandler  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": BodyCap(ThreadedHandler()),
        "websocket": SameOrigin(CookieMiddleware(URLRouter(websocket_urlpatterns))),
    }
)

if not settings.CHANNEL.in_memory:
    # No request waits for messages to others, nor for counts that the next one changes again.
    publish.keep_in_background()
    dispatch.keep_in_background()
    topics.keep_counting_seldom()
