"""The signal of an activation, sent inside the transaction that activates a revision."""

from django.dispatch import Signal

# Sent with `name`: pending pods may fit under the new revision.
policy_activated = Signal()
