"""How does a program's work reach a server, native or Burn's, and how do answers come back?"""
