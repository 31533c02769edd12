"""Filters that every template has."""

from django import template
from django.utils.translation import pgettext

from web.translation import translate

register = template.Library()
register.filter("translated", lambda text: translate(text if isinstance(text, str) else str(text)) if text else text)
# Descriptions of built-in policies and plugins are translated; those of others are shown unchanged.
register.filter("of_policy", lambda text: pgettext("policy", text) if text else text)
