"""Built-in rule rewards."""
