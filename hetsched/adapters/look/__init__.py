"""Input and output of `hetsched look`: the user's kubeconfig, the objects of a cluster, and the HTML page."""
