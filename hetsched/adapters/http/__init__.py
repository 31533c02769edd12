"""Outbound HTTP: guarded calls, certificates and signed messages."""
