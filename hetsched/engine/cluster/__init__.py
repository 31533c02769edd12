"""The cluster state: nodes as columns, assumed pods, volumes, devices, quotas, measured use and balance."""
