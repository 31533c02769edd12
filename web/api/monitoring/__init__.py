"""Health endpoints, metrics of clusters, and the metrics endpoint for Prometheus."""
