"""REST resources of nodes: their facts with sources, actions on them, and instruction sets."""
