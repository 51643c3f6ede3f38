"""``torch.compile`` for burn devices: a backend of dynamo that issues each graph as one task."""
