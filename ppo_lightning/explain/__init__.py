"""What a recipe does, before it runs: stages, the fields that flow through them, and why not. Imports no torch."""
