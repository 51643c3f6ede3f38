"""Which shape and dtype have the outputs of each operation? One module per kind of operation."""
