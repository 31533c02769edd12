"""REST of webhooks and their deliveries."""
