"""Actions that write the watch events of a live cluster, on nodes and pods, to rows."""
