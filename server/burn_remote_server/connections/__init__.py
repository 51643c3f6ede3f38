"""How does a connection live, from its opening to its end?"""
