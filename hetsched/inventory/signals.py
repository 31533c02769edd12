"""Signals about inventory changes for the apps that import this one, sent inside the transaction of the change."""

from django.dispatch import Signal

# Sent when the nodes of `cluster` changed, so that pending pods may fit now. `events` contains the kinds of changes, if
# known.
inventory_changed = Signal()
