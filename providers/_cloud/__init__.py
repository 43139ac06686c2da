"""What all clouds share: labels, first-boot data, creation and teardown of nodes."""
