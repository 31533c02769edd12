"""The sentences of the floors below in one language, for scripts that say what REST answers.

Rule: a page in another language than English names the document by what is in it, so a browser fetches it once and
keeps it, whatever becomes of its cookies; scripts wait for it, so a page has it fetched before they are there.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b

import msgspec
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import translation
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from .told import catalogue


@require_safe
@cache_control(private=True, max_age=30 * 86400, immutable=True)
@login_required
def sentences(request: HttpRequest, language: str, digest: str) -> HttpResponse:
    """Answer with the patterns and their translations; a digest that is not the present one names nothing."""
    if not translation.check_for_language(language) or digest != _digest(language):
        raise Http404
    # Cookies decide whether it is answered, not what is in it; varying by them, it would be fetched after each change.
    request.session.accessed = False
    return HttpResponse(_document(language), content_type="application/json")


def address() -> str:
    """Return where the document of the language in use is, nothing in English."""
    language = translation.get_language() or "en"
    return "" if language.startswith("en") else reverse("sentences", args=[language, _digest(language)])


@cache
def _document(language: str) -> bytes:
    with translation.override(language):
        return msgspec.json.encode(catalogue())


def _digest(language: str) -> str:
    return blake2b(_document(language), digest_size=4).hexdigest()
