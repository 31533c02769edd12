"""Pages of nodes: the list, and the tabs of one node."""
