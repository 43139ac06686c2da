"""TensorFlow's and Horovod's part in a run: strategies, TF_CONFIG, and what their logs say."""
