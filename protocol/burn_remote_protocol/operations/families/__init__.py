"""Which operations are there? One module per family or subject, one row per operation."""
