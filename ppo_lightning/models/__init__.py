"""Actor, critic, reference and token log-probabilities."""
