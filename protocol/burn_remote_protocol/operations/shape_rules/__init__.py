"""Rules for the shapes and dtypes of outputs, one module per subject."""
