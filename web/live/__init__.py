"""Lives here: the WebSocket: who may listen to what, one subscription per process, fan-out to bounded queues.

May import: hetsched.journal, hetsched.access, hetsched.placement, web.api.prometheus, channels.
Never: write to the database, or let one slow reader hold up another.
"""
