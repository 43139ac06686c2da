"""One file per cloud: makes nodes, tells which exist, destroys them."""
