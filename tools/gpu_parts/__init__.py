"""A TensorFlow environment in parts, for a machine that has a GPU and no network."""
