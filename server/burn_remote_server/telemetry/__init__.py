"""What does a server tell: logs, metrics, health?"""
