"""Prompts with answers, and the order they are drawn in."""
