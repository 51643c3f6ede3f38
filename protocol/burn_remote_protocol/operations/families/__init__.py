"""The rows of the table of operations, one module per family or subject."""
