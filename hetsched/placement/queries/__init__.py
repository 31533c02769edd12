"""Read-only queries over workloads, pods, decisions and reservations."""
