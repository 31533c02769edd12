"""Load tests of a whole control plane from outside: `make load` and `make soak`, and their reports."""
