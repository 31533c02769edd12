"""Pending pods: the scheduling queue, requeueing, back-off and decision time."""
