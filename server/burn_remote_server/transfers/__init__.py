"""How do tensors get from server to server?"""
