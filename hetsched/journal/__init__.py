"""Journal of changes: the audit trail, the numbered topics, the outbox of live messages and the shared counters.

May import: hetsched.contracts.
Never: the meaning of the messages; the apps above define it.
"""
