"""Pages of clusters: fleet, balance, health and shadow mode."""
