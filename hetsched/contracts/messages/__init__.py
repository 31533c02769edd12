"""Messages between the node agent and the control plane, and their signatures."""
