"""Parts of the GCP driver; nothing outside it knows Google's API."""
