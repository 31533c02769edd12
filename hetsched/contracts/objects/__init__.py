"""Objects of a cluster (pods, nodes, devices, storage, policies), and the facts that sources report about nodes."""
