"""Allocate GPUs and keep them unfragmented."""
