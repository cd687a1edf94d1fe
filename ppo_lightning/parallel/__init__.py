"""Ranks, balancing and micro-batches."""
