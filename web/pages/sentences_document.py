"""Translations of engine and ledger messages in one language, for scripts that display REST responses.

A page in a language other than English links the document by a digest of its content, so a browser fetches it once and
caches it regardless of cookies. Scripts wait for it, so the page preloads it.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import translation
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from hetsched.contracts.documents import encode

from .message_translation import catalogue


@require_safe
@cache_control(private=True, max_age=30 * 86400, immutable=True)
@login_required
def sentences(request: HttpRequest, language: str, digest: str) -> HttpResponse:
    """Return the patterns and their translations; 404 for a digest that is not the current one."""
    if not translation.check_for_language(language) or digest != _digest(language):
        raise Http404
    # Cookies decide about access, not about the content; with `Vary: Cookie` the browser would fetch it after each
    # change of a cookie.
    request.session.accessed = False
    return HttpResponse(_document(language), content_type="application/json")


def address() -> str:
    """Return the address of the document in the active language, empty for English."""
    language = translation.get_language() or "en"
    return "" if language.startswith("en") else reverse("sentences", args=[language, _digest(language)])


@cache
def _document(language: str) -> bytes:
    with translation.override(language):
        return encode(catalogue())


def _digest(language: str) -> str:
    return blake2b(_document(language), digest_size=4).hexdigest()
