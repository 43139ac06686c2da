"""All code that runs on nodes, and nothing else: the standard library of Python 3.6, and sh.

Sent there by ship.py. Modules import each other as `from cloudtrain.node import a, b`.
"""
