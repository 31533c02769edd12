"""Writers of the watch events of a live cluster: nodes and pods become rows."""
