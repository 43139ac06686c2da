"""Code shared by all clouds: labels, timing, first-boot data, creation and teardown of nodes."""
