"""Driver for AWS: EC2 over apache-libcloud's connection."""
