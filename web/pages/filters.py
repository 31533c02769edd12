"""Filters that are available in every template."""

from django import template
from django.utils.translation import pgettext

from hetsched.contracts.objects.facts import source_message
from web.translation import translate

register = template.Library()
register.filter("translated", lambda text: translate(text) if text else text)
register.filter("source", lambda text: translate(source_message(text)))
# Descriptions of built-in policies and plugins are translated; those of other policies and plugins are shown unchanged.
register.filter("of_policy", lambda text: pgettext("policy", text) if text else text)
