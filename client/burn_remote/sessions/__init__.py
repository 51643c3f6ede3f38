"""Sessions: connections that carry out what runners ask for, and survive as long as they can."""
