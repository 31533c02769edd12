"""Conversion between Kubernetes objects and contract types, in both directions."""
