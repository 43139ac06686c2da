"""What the clouds have in common: labels, patience, first-boot data, up and down."""
