"""WebSocket routes."""

from typing import Any

from django.urls import path, re_path

from .sockets import live, not_found

# Channels routes to ASGI applications, which Django's types do not know.
_application: Any = live
_elsewhere: Any = not_found
websocket_urlpatterns: list[Any] = [path("ws/live/", _application), re_path(r"", _elsewhere)]
