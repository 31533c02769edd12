"""Lives here: the node agent, which reads one machine, reports it and keeps its containers on their CPUs and cards.

May import: hetsched.contracts, hetsched.isa, the standard library, gRPC with its messages, NVML's bindings.
Never: Django, NumPy, the engine, the API server: it speaks to the control plane, the kubelet's sockets and CRI.
"""
