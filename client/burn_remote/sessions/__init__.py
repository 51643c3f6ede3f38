"""Sessions: connections that send what runners issue, and resume where the dialect allows it."""
