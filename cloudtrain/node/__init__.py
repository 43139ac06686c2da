"""All code that runs on nodes, and nothing else: Python 3.6 or later with its standard library, and
POSIX sh.

Sent there by ship.py. Modules import each other as `from cloudtrain.node import a, b`.
"""
