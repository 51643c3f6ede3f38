"""The dialect of Burn 0.22: one socket per session, on the path of native sessions."""
