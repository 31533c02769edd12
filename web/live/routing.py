"""Where the WebSocket is."""

from typing import Any

from django.urls import path

from .sockets import live

# Channels routes to ASGI applications, which Django's types do not know.
_application: Any = live
websocket_urlpatterns: list[Any] = [path("ws/live/", _application)]
