"""ASGI application: HTTP to Django and WebSockets to the live pages, checked first by `asgi_middleware.py`."""

from __future__ import annotations

import gc
import os

import django
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.sessions import CookieMiddleware

# The objects of imported modules live as long as the process: exclude them from garbage collection.
gc.disable()
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
gc.freeze()
gc.enable()
