"""Enforce the placement constraints of Kubernetes."""
