"""Metric values with explicit reductions, the registry of keys, and what is computed from a batch."""
