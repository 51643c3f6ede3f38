"""What does a session do with its messages, in which order, on which thread?"""
