"""Pages of simulations: what-if and advice."""
