"""What all clouds share: labels, timing, first-boot data, creation and teardown of nodes."""
