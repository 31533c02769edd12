"""The scheduler extender: a process that serves kube-scheduler over TLS from hetsched's scheduler cache.

May import: the same as hetsched.scheduling, prometheus-client, sockets and TLS.
Must not: serve a client without a listed client certificate, or write a row other than through the actions.
"""
