"""How do Burn 0.21's own clients and servers meet the sessions of this one?"""
