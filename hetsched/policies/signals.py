"""Signal sent inside the transaction that activates a revision."""

from django.dispatch import Signal

# Sent with the `name` of the policy, so that receivers retry pending pods, which may fit under the new revision.
policy_activated = Signal()
