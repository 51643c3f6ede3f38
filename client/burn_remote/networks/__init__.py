"""Which functions do networks consist of? ``burn_remote.functional`` has them all."""
