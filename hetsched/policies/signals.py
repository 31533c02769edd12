"""How the apps above learn that another revision decides from now on, inside the transaction that activates it."""

from django.dispatch import Signal

# Sent with `name`: pods that wait may fit under the new revision.
policy_activated = Signal()
