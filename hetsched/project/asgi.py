"""The ASGI application: HTTP to Django, WebSockets to the live pages, the doors in front of both."""

from __future__ import annotations

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")
django_application = get_asgi_application()

# Consumers import models, which exist only once Django is set up.
from .doors import BodyCap, SameOrigin  # noqa: E402

try:
    from web.live.routing import websocket_urlpatterns
except ModuleNotFoundError:
    websocket_urlpatterns = []

application = ProtocolTypeRouter(
    {
        "http": BodyCap(django_application),
        "websocket": SameOrigin(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
