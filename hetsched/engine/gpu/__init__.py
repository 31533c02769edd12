"""GPU eligibility, links between GPUs, fragmentation and the workload mix."""
