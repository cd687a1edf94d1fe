"""Recipes as data: find, copy, check, compare, make from a run, import from verl. Imports no torch."""

from ppo_lightning.recipes.shelf import copy, find, listing, show

__all__ = ["copy", "find", "listing", "show"]
