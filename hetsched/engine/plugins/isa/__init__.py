"""Match instruction sets."""
