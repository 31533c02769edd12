"""ASGI application: HTTP to Django and WebSockets to the live pages, checked first by `asgi_middleware.py`."""

from __future__ import annotations

import os

import django
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.sessions import CookieMiddleware

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")
django.setup(set_prefix=False)

# The sockets import models, which exist only after Django is set up.
from web.live.routing import websocket_urlpatterns  # noqa: E402

from .asgi_middleware import BodyCap, SameOrigin  # noqa: E402
from .handler import ThreadedHandler  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": BodyCap(ThreadedHandler()),
        "websocket": SameOrigin(CookieMiddleware(URLRouter(websocket_urlpatterns))),
    }
)
