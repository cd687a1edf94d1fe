"""The one declarative configuration: schema, loading, validation."""
