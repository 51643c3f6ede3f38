"""How is a server started, configured, asked whether it lives, and stopped?"""
