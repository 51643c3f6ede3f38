"""The parts of ``cluster_demo.py``: nodes, training, moves and reports."""
