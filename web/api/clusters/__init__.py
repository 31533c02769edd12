"""REST resources of clusters: connections, metric sources, node agents and shadow mode."""
