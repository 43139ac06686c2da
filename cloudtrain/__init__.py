"""cloudtrain: one YAML file from rented GPU machines to landed TensorFlow results."""

__version__ = "0.1.0"
