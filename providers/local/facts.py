"""Facts of `provider: local`."""

from cloudtrain.core.cloud import ProviderFacts

FACTS = ProviderFacts(name="local", on_this_machine=True)
