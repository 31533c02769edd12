"""Export of contract types as Kubernetes objects, the inverse of the readers."""
