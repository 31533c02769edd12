"""The icon where browsers look for it when a page names none, such as that of the API's reference."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.views.decorators.http import require_safe


@require_safe
def icon(request: HttpRequest) -> HttpResponse:
    return redirect(static("img/mark.svg"))
