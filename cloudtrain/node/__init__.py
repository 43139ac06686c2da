"""All that runs on nodes, and nothing else: any Python from 3.6, its standard library, POSIX sh.

ship.py brings it there. One module imports others by `from cloudtrain.node import a, b`.
"""
