"""What generates responses."""
