"""The parts of ``cluster_demo.py``, each a question of its own."""
