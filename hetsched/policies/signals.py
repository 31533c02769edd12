"""Signal sent inside the transaction that activates a revision."""

from django.dispatch import Signal

# Sent with the policy's `name`, because pending pods may fit under the new revision.
policy_activated = Signal()
