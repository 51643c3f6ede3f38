"""From a call to one operation of its session: operators and the cache of signatures."""
