"""All code that runs on nodes, and nothing else: Python from 3.6 on, its standard library, POSIX
sh.

ship.py sends it there. A module imports others by `from cloudtrain.node import a, b`.
"""
