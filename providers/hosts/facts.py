"""Facts of `provider: hosts`."""

from cloudtrain.core.cloud import ProviderFacts

FACTS = ProviderFacts(name="hosts", takes_hosts=True)
