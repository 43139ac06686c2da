"""On PYTHONPATH: every Python of a test's user has the toy's folder among the providers."""

from pathlib import Path

import cloudtrain.providers

cloudtrain.providers.__path__.append(str(Path(__file__).parents[1] / "providers"))
cloudtrain.providers.NAMES = ("toy", *cloudtrain.providers.NAMES)  # type: ignore[assignment]
