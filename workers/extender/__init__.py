"""Lives here: the extender: a process that answers kube-scheduler over TLS, on the state that decides here too.

May import: what workers may, workers.bind, prometheus-client, sockets and TLS.
Never: answer anybody without a client certificate that is on the list, or write a row other than through the actions.
"""
