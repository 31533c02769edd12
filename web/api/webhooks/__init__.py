"""REST resources of webhooks and of their deliveries."""
