"""Parts of the AWS driver: EC2 over apache-libcloud's connection."""
