"""Writes to pods: bindings of pods and volumes, evictions, conditions and events."""
