"""The WebSocket: permissions, one subscription per process, fan-out to bounded queues.

May import: hetsched.journal, hetsched.access, hetsched.placement, web.api.monitoring.prometheus, channels.
Never: write to the database, or let a slow client delay another.
"""
