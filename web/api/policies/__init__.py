"""REST resources of policies: versions, checks, previews, golden placements, scheduled activations and plugins."""
