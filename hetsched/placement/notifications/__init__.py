"""Notifications about workloads: callbacks, webhook deliveries and their retries."""
