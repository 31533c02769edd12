"""Readers of the objects of dynamic resource allocation (`resource.k8s.io`)."""
