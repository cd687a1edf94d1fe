"""`check-invariance`: a recipe's update must give the same numbers however its rows are split."""
