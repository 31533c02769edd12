"""Signals by which the apps above learn of inventory changes, inside the transaction of the change."""

from django.dispatch import Signal

# Sent with `cluster`: its nodes changed, so pending pods may fit now; `events` name the kinds of change, where known.
inventory_changed = Signal()
