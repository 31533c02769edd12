"""Health, metrics of the fleet, and the metrics endpoint of Prometheus."""
