"""What `providers/toy.py` is made of."""
