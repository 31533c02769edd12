"""The icon at the default address that browsers request for pages without an icon link, such as the API reference."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.views.decorators.http import require_safe


@require_safe
def icon(request: HttpRequest) -> HttpResponse:
    return redirect(static("img/mark.svg"))
