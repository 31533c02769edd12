"""GPUs of a machine: drivers, their documents, and the PCI bus."""
