"""The batch that travels through a step: three layers, their operators, the table of fields."""
