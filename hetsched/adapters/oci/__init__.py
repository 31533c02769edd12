"""Container images: references, registries, layouts, layers, and the platforms and programs in them.

May import: hetsched.contracts, hetsched.isa, hetsched.adapters, msgspec, clocks, threads, sockets.
"""
