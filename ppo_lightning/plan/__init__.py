"""`plan`: a recipe's memory, estimated before anything is loaded."""
