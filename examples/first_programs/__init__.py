"""Twelve short programs such as a newcomer writes, each a function of its device.

``tests/examples/test_first_programs.py`` compares their results with NumPy, SciPy and scikit-learn,
``test_embed_sentences.py`` the embeddings of sentences with a model in NumPy.
"""
