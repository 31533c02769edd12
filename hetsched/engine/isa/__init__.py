"""ISA demands of pods against the ISA reports of nodes and the platforms of images."""
