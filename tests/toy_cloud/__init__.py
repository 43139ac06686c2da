"""A fourth cloud, as its author would bring it: a provider's folder, a stand-in, a config."""
