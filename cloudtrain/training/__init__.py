"""What TensorFlow and Horovod expect of a run: strategies, TF_CONFIG, and what their logs say."""
