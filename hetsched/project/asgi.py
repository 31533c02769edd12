"""The ASGI application: HTTP to Django, WebSockets to the live pages, the doors in front of both."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from channels.sessions import CookieMiddleware
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")
django_application = get_asgi_application()

# The sockets import models, which exist only once Django is set up.
from web.live.routing import websocket_urlpatterns  # noqa: E402

from .doors import BodyCap, SameOrigin  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": BodyCap(django_application),
        "websocket": SameOrigin(CookieMiddleware(URLRouter(websocket_urlpatterns))),
    }
)
