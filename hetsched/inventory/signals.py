"""How the apps above learn that an inventory changed, inside the transaction that changes it."""

from django.dispatch import Signal

# Sent with `cluster`: its nodes changed, so waiting pods may fit now; `events` say in which way, where that is known.
inventory_changed = Signal()
