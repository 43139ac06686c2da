"""The newest TensorFlow release that the tables know, and the one after it."""

from cloudtrain.playbooks import tensorflow_releases

NEWEST = tensorflow_releases.newest()
NUMBER = tensorflow_releases.release(NEWEST)
NEXT = f"{NUMBER[0]}.{NUMBER[1] + 1}"
"""No table has it."""
