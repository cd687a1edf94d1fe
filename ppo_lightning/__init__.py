"""Reinforcement-learning post-training of language models on Lightning."""

__version__ = "0.1.0"
