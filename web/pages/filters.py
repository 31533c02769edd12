"""Filters that every template has."""

from django import template
from django.utils.translation import pgettext

from .told import told

register = template.Library()
register.filter("told", lambda text: told(str(text)) if text else text)
# Built-in policies and plugins describe themselves in English; what others say of theirs is shown as they say it.
register.filter("of_policy", lambda text: pgettext("policy", text) if text else text)
