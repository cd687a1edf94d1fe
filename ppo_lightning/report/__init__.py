"""What a finished run looks like: one self-contained page per run or comparison, and the token ledger. Imports no torch."""
