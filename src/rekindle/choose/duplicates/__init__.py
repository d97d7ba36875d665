"""Near-duplicates: their groups, whose turn it is, and which sample is substituted for which."""
