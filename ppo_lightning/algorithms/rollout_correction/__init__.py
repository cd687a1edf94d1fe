"""Correction for the gap between the engine's and the trainer's probabilities: weights, rejection, diagnostics."""
