"""Driver for Google Compute Engine; nothing outside it knows Google's API."""
