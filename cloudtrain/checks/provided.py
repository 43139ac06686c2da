"""Which modules an environment has for certain, by what `setup:` names."""

from __future__ import annotations

import re
import sys

from cloudtrain.config import requirements
from cloudtrain.config.requirements import package
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.training.strategies import STRATEGIES, strategy_of

_REMOVED = frozenset(("imp", "distutils", "asyncore", "asynchat", "smtpd", "cgi", "crypt", "pipes"))
"""Of Python's own modules, those that some of its versions have."""

_NAMES = (
    "tensorflow tensorflow_core tensorflow_estimator tensorflow_io_gcs_filesystem tensorboard "
    "tensorboard_data_server tensorboard_plugin_wit keras tf_keras keras_applications "
    "keras_preprocessing absl astor astunparse attr attrs cached_property cachetools certifi "
    "charset_normalizer chardet clang contextlib2 dataclasses dm_tree flatbuffers gast google "
    "grpc h5py idna importlib_metadata importlib_resources jax jaxlib libtpu markdown "
    "markdown_it markupsafe mdurl ml_dtypes mock namex numpy nvidia oauthlib opt_einsum optree "
    "packaging pasta PIL pip pkg_resources pyasn1 pyasn1_modules pygments requests "
    "requests_oauthlib rich rsa scipy setuptools six termcolor tree typing_extensions urllib3 "
    "werkzeug wheel wrapt zipp _distutils_hack"
)
_LIBRARIES = (each.library.package for each in STRATEGIES.values() if each.library)
"""Without its strategy one is missing, too, which is another note."""
_WITH_TENSORFLOW = frozenset((*_NAMES.split(), *_LIBRARIES))
"""With its dependencies, of all releases; the environments of 2.21 were looked at (2026-11-26), for
others what their wheels require on pypi.org. More than each has: what is here is never missed."""

_WITH_HOROVOD = frozenset(("cloudpickle", "psutil", "yaml", "cffi", "pycparser"))

_DATE = ("dateutil", "pytz", "tzdata")
_PLOTS = ("matplotlib", "mpl_toolkits", "pylab", "cycler", "kiwisolver", "pyparsing", "fontTools")
_MODULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("numpy", "h5py", "absl-py", "keras", "tf-keras", "tensorboard"), ()),
    **dict.fromkeys(("six", "requests", "rich", "protobuf", "scipy", "pillow"), ()),
    "pyyaml": ("yaml",),
    "scikit-learn": ("sklearn", "joblib", "threadpoolctl", "narwhals"),
    "pandas": ("pandas", *_DATE),
    "matplotlib": (*_PLOTS, "contourpy", *_DATE),
    "seaborn": ("seaborn", "pandas", *_PLOTS, "contourpy", *_DATE),
    "tqdm": ("tqdm",),
    "opencv-python": ("cv2",),
    "opencv-python-headless": ("cv2",),
    "tensorflow-hub": ("tensorflow_hub",),
    "boto3": ("boto3", "botocore", "jmespath", "s3transfer", *_DATE),
    "tensorflow-datasets": (
        *("tensorflow_datasets", "tensorflow_metadata", "promise", "dill", "tqdm", "click", "toml"),
        *("etils", "simple_parsing", "docstring_parser", "array_record", "pyarrow", "future"),
        *("immutabledict", "fsspec", "typeguard", "einops", "epath"),
    ),
}
"""Modules that a package and its dependencies bring beside those above (pypi.org, 2026-11-26)."""

_PACKAGES = {
    "sklearn": "scikit-learn",
    "cv2": "opencv-python-headless",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_hub": "tensorflow-hub",
    "tensorflow_probability": "tensorflow-probability",
    "tensorflow_addons": "tensorflow-addons",
    "tensorflow_text": "tensorflow-text",
}


def provided(config: ClusterConfig) -> frozenset[str] | None:
    """Top-level modules that the tasks' environment may have; None if it may have others, too:
    without `setup.tensorflow` it is the node's own, and not every package is known.
    """
    setup = config.setup
    if setup.tensorflow is None or setup.run or setup.install or "PYTHONPATH" in config.train.env:
        return None
    if requirements.of_code(config) is not None:
        return None
    try:
        listed = requirements.lines(config)
    except ConfigError:
        return None
    library = strategy_of(config).library
    known = {*_MODULES, *requirements.TENSORFLOW, *([library.package] if library else [])}
    found = set(sys.stdlib_module_names) | _REMOVED | _WITH_TENSORFLOW
    found |= _WITH_HOROVOD if library else set()
    for line in listed:
        name = package(line)
        if line.startswith("-"):
            continue
        if name not in known or re.search(r"\[", line):
            return None
        found |= set(_MODULES.get(name, ()))
    return frozenset(found)


def package_of(module: str) -> str:
    """What to list for a module, as far as it is known: `sklearn` → `scikit-learn`."""
    return _PACKAGES.get(module, module)
