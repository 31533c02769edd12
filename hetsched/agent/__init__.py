"""Node agent: reads the facts of one machine, reports them, pins containers to CPUs and assigns GPUs to containers.

May import: hetsched.contracts, hetsched.isa, the standard library, gRPC with its messages, NVML's bindings.
Never: Django, NumPy, the engine, the API server. The agent connects only to the control plane, the kubelet and CRI.
"""
