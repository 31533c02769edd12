"""Load on a whole control plane from outside: `make load` and `make soak`, and their reports."""
