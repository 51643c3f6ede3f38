"""The operations of Burn 0.21's IR: their table, their rules, their form on the wire."""
