"""The mathematics of a step: plain functions on tensors."""
