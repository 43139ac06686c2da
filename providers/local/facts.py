"""Facts of `provider: local`."""

from cloudtrain.cloud import ProviderFacts

FACTS = ProviderFacts(name="local", on_this_machine=True)
