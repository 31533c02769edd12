"""Signals of inventory changes for the apps that import this one, sent inside the transaction of the change."""

from django.dispatch import Signal

# Sent with `cluster`: its nodes changed, so pending pods may fit now; `events` name the kinds of change, where known.
inventory_changed = Signal()
