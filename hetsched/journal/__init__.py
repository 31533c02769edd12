"""Lives here: what happened, told and kept: the audit trail, the numbered topics and the outbox of live messages.

May import: hetsched.contracts.
Never: what the messages mean; the apps above say that.
"""
