"""The dialect of Burn 0.21: its sockets, sessions and compatibility rules."""
