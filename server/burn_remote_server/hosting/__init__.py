"""The devices and sessions that one process hosts, with or without a listening port."""
