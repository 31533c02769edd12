"""REST resources of simulations: what-if, plan tokens, advice and headroom."""
