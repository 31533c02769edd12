"""The compiled loop: schedule many pods with the same results as the scheduling cycle."""
