"""Journal of changes: the audit trail, the numbered topics, the outbox of live messages and the shared counters.

May import: hetsched.contracts.
Must not contain: code that depends on the content of messages, which the higher layers define.
"""
