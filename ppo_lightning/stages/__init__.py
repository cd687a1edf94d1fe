"""The nine stages of a step, one file each."""
