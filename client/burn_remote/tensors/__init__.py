"""What is a tensor to a program, and how does a call on tensors become an operation?"""
