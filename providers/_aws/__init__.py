"""What `providers/aws.py` is made of: EC2 over apache-libcloud's connection."""
