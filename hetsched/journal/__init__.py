"""Journal of changes: the audit trail, the numbered topics, the outbox of live messages and the shared counters.

May import: hetsched.contracts.
Must not contain: the meaning of the messages, which the apps above define.
"""
