"""Node agent: reads one machine, reports it and keeps its containers on their CPUs and GPUs.

May import: hetsched.contracts, hetsched.isa, the standard library, gRPC with its messages, NVML's bindings.
Never: Django, NumPy, the engine, the API server. The agent connects only to the control plane, the kubelet and CRI.
"""
