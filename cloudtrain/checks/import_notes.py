"""Notes of `plan` and `check` on modules that a script imports and nothing provides."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Collection, Iterator

from cloudtrain.checks.script_code import StartedScript, scripts_of
from cloudtrain.config import requirements
from cloudtrain.config.requirements import package
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.script.program import certain_imports
from cloudtrain.training.strategies import STRATEGIES, strategy_of


def import_notes(config: ClusterConfig) -> tuple[str, ...]:
    """One line for each module that is certainly missing, with `file.py:LINE`. Offline."""
    there = provided(config)
    found: list[str] = []
    for field, script in scripts_of(config).items():
        if script is None:
            continue
        if script.entry is not None:
            found += _imports(script, there)
        elif script.started.module is not None:
            found += _module(field, script, there)
    return tuple(dict.fromkeys(found))


def _imports(script: StartedScript, there: frozenset[str] | None) -> Iterator[str]:
    entry, paths = script.entry, script.code.paths
    assert entry is not None
    for use in certain_imports(entry, script.code.read):
        top = use.name.partition(".")[0]
        if top in (there or ()) or (there is None and top in sys.stdlib_module_names):
            continue
        folder = folder_with(top, paths)
        if folder == entry.root:
            continue  # a package without __init__.py
        if _is_on_path(top, script):
            continue
        if folder is not None and script.started.file is not None:
            as_module = start_as_module(entry.path, str(script.inside), folder)
            below = posixpath.relpath(folder, script.inside)
            way = f"start {as_module}" if as_module else f"set `train.env.PYTHONPATH: {below}`"
            looked = f"a script looks in its own folder, {entry.root}"
            yield f"{use}: {top} is in {_shown(folder)} of the code, but {looked}: {way}"
        elif there is not None and not _anywhere(top, paths):
            yield (
                f"{use}: neither the code nor `setup:` has the module {top}: add "
                f"{_PACKAGES.get(top, top)} to `setup.packages`"
            )


def _module(field: str, script: StartedScript, there: frozenset[str] | None) -> Iterator[str]:
    """`python -m NAME` of which the code has nothing where it starts."""
    name = script.started.module or ""
    top = name.partition(".")[0]
    if top in (there or sys.stdlib_module_names):
        return
    inside, paths = str(script.inside), script.code.paths
    prefix = "" if inside == "." else f"{inside}/"
    if any(path.startswith((f"{prefix}{top}/", f"{prefix}{top}.py")) for path in paths):
        return  # a part of it is there: a finding of its own
    if _is_on_path(top, script):
        return
    folder = folder_with(top, paths)
    if folder is not None:
        yield f"{field}: -m {name}: {top} is in {_shown(folder)}: set `train.dir: {folder}`"
    elif there is not None and not _anywhere(top, paths):
        yield f"{field}: -m {name}: neither the code nor `setup:` has the module {top}"


def _is_on_path(top: str, script: StartedScript) -> bool:
    """True if `train.env.PYTHONPATH` has a folder of the code with it, or one that is not known
    here."""
    for part in script.config.train.env.get("PYTHONPATH", "").split(":"):
        if part.startswith(("/", "~")) or "{" in part:
            return True
        folder = posixpath.normpath(posixpath.join(script.inside, part))
        prefix = "" if folder == "." else f"{folder}/"
        names = (f"{prefix}{top}/", f"{prefix}{top}.py")
        if part and any(path.startswith(names) for path in script.code.paths):
            return True
    return False


def _anywhere(top: str, paths: frozenset[str]) -> bool:
    """True if something of that name is in the code, such as a link, or a compiled module."""
    return any(
        part == top or part.startswith(f"{top}.") for path in paths for part in path.split("/")
    )


def _shown(folder: str) -> str:
    return "the top folder" if folder == "." else posixpath.join(folder, "")


# ── modules of an environment, by `setup:` ─────────────────────────────────────


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
    without `setup.tensorflow` it is the node's own, and not every package is known."""
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


# ── modules of the code that a script cannot import ────────────────────────────


def folder_with(module: str, paths: Collection[str]) -> str | None:
    """The only folder of the code with this top-level module; "." is its top. None if it has none,
    or several."""
    found = {
        posixpath.dirname(path.removesuffix(end)) or "."
        for path in paths
        for end in (f"{module}.py", f"{module}/__init__.py")
        if path == end or path.endswith(f"/{end}")
    }
    for path in paths:  # a folder of that name with Python files, with or without `__init__.py`
        parts = path.split("/")
        if path.endswith(".py") and module in parts[:-1]:
            found.add("/".join(parts[: parts.index(module)]) or ".")
    return found.pop() if len(found) == 1 else None


def start_as_module(script: str, inside: str, folder: str) -> str | None:
    """Command that starts a script so that it finds modules of a folder above it: `python -m a.b`,
    with `train.dir` if that is not `inside`. None if the folder is not above the script, or if the
    path between them cannot be a module's name."""
    script, folder = posixpath.normpath(script), posixpath.normpath(folder)
    if folder != "." and not script.startswith(f"{folder}/"):
        return None
    dotted = posixpath.relpath(script, folder).removesuffix(".py").replace("/", ".")
    if "." not in dotted or not all(part.isidentifier() for part in dotted.split(".")):
        return None
    there = "" if folder == posixpath.normpath(inside) else f" with `train.dir: {folder}`"
    return f"`python -m {dotted}`{there}"
