"""Allocate NUMA zones and CPUs."""
