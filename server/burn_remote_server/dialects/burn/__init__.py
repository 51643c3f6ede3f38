"""The dialect of Burn 0.21: its sockets, its sessions and its compatibility rules."""
