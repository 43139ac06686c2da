"""Facts of `provider: hosts`."""

from cloudtrain.cloud import ProviderFacts

FACTS = ProviderFacts(name="hosts", takes_hosts=True)
