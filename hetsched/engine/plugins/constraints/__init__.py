"""Keep the placement rules of Kubernetes."""
