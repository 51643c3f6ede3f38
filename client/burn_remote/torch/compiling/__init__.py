"""``torch.compile`` for burn devices: a backend of dynamo, and graphs as tasks."""
