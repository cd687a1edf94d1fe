"""Runs as pages: one self-contained report per run or comparison, and the token ledger. Imports no torch."""
