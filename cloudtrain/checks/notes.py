"""Notes of `plan` and `check`, offline: configs that work, but hardly as intended."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Literal

from cloudtrain.catalog.region_names import invalid_region
from cloudtrain.checks.commands import marked, placeholder_notes
from cloudtrain.checks.images import image_note
from cloudtrain.checks.import_notes import import_notes
from cloudtrain.checks.path_notes import INSTEAD, bucket_notes, path_notes, says_written
from cloudtrain.checks.script_code import (
    command_lines,
    explain_missing,
    facts_in,
    program_notes,
    scripts_of,
)
from cloudtrain.checks.setup import setup_notes
from cloudtrain.cluster.plan import make_plan, open_ports_note
from cloudtrain.config import with_candidate
from cloudtrain.config.env_file import environment_of
from cloudtrain.config.location import placed
from cloudtrain.core.cloud import cloud_of, facts_of, is_cloud
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.paths import shown
from cloudtrain.playbooks import code_packages, tensorflow, tensorflow_releases
from cloudtrain.script import saving
from cloudtrain.script.arguments import argument_problems
from cloudtrain.script.facts import ScriptFacts, Use, strategies_in, strategy_in
from cloudtrain.script.releases import MissingName, missing_in
from cloudtrain.script.shell_line import Started
from cloudtrain.training import interconnect
from cloudtrain.training.strategies import STRATEGIES, strategy_of
from cloudtrain.training.tf_config import for_estimator, wants_tf_config
from cloudtrain.trust.consent import fact_lines
from cloudtrain.trust.file_facts import file_facts


def unknown_places(config: ClusterConfig) -> tuple[Problem, ...]:
    """Impossible regions and zones; not checked for a custom endpoint."""
    if not is_cloud(config.provider) or config.endpoints.compute:
        return ()
    wrong = (invalid_region(config.provider, place) for place in config.placement)
    found = Problem(file=config.source, line=None, field="placement", text="")
    return tuple(placed(config, replace(found, text=text)) for text in wrong if text)


def evaluator_note(config: ClusterConfig) -> str | None:
    if "evaluator" not in config.nodes or config.train.checkpoints is not None:
        return None
    return (
        "evaluator: without `shared` or train.checkpoints it gets no checkpoints from the chief, "
        "so it evaluates none"
    )


def idle_gpu_note(config: ClusterConfig) -> str | None:
    """Note that no node of this cloud can end itself."""
    cloud = cloud_of(config.provider)
    if config.limits.idle_gpu is None or cloud is None or cloud.shutdown_leaves is not None:
        return None
    return (
        f"limits.idle_gpu has no effect on {cloud.title}, which bills a machine that shuts itself "
        "down: limits.idle counts while this machine is on, limits.max_lifetime in any case"
    )


def part_note(config: ClusterConfig) -> str | None:
    """Note that each ps saves on its own disk (docs/artifacts.md has what was run)."""
    if "ps" not in config.nodes or config.train.checkpoints is None or config.shared is not None:
        return None
    return (
        f"train.checkpoints: {PARTS}: name the folder in `shared` instead, which all nodes share; "
        "or save with "
        "tf.train.CheckpointOptions(experimental_io_device='/job:chief/task:0/device:CPU:0'), in "
        "TensorFlow 1 with Saver(sharded=False) unless there is one ps, or, with `identity`, to a "
        "bucket"
    )


def _unset_secrets(config: ClusterConfig) -> Iterator[str]:
    environ = environment_of(config) if config.secrets else {}
    for name, variable in config.secrets.items():
        if not environ.get(variable):
            yield f"secrets.{name}: the environment variable {variable} is not set"


def access_note(config: ClusterConfig) -> str | None:
    network = config.network
    if not is_cloud(config.provider) or not network.private or network.ssh_proxy is not None:
        return None
    return (
        "network.private: SSH goes straight to the nodes' internal addresses, so this machine must "
        "be in their network, by a VPN for example; otherwise set network.ssh_proxy"
    )


def data_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on `data:` that need no query."""
    found = []
    for name, source in config.data.items():
        if not source.shard:
            continue
        roles = (source.role,) if source.role else ("chief", "worker")
        ranks = sum(config.nodes[role].count for role in roles if role in config.nodes)
        others = [role for role in config.nodes if role not in roles]
        alone = f"; {', '.join(others)} get none of it" if others else ""
        found.append(
            f"data.{name}: each of {ranks} nodes ({', '.join(roles)}) gets 1 of every {ranks} files"
            f"{alone}: the script must not shard it again (AutoShardPolicy.OFF)"
        )
    if config.data:
        names = ", ".join(config.data)
        found.append(f"data ({names}): size and transfer cost are known after `check`")
    return tuple(found)


WIDE = {4: 16, 6: 48}
"""Bits of the widest range that is one network of a company or a site: 65,536 addresses, and the
/48 of a site (RFC 6177)."""


def rights_notes(config: ClusterConfig) -> tuple[str, ...]:
    return (*fact_lines(config, file_facts(config)), *open_notes(config))


def open_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on who may try to log in, if that is more than one network; each note once."""
    found: dict[str, None] = {}
    for each in [with_candidate(config, each) for each in config.candidates] or [config]:
        source = each.network.ssh_from
        opens = is_cloud(each.provider) and each.network.firewall is None
        if not opens or source in ("auto", "none"):
            continue
        network = ipaddress.ip_network(source)
        bits, version = network.prefixlen, network.version
        if network.version == 6 and network.network_address.ipv4_mapped and bits >= 96:
            bits, version = bits - 96, 4
        if bits < WIDE[version]:
            count = f"{network.num_addresses:,}" if version == 4 else f"2^{128 - bits}"
            opened = f"network.ssh_from: port 22 is open to {count} addresses ({source})"
            found[f"{opened}; `auto` opens it to yours alone"] = None
    return tuple(found)


# ── the script: where its source and the config disagree ─────────────────────────


KERAS_3 = (2, 16)
"""First TensorFlow release with Keras 3: https://github.com/tensorflow/tensorflow/releases/tag/v2.16.1"""


def script_notes(config: ClusterConfig) -> tuple[str, ...]:
    """One line for each disagreement, with `file.py:LINE`. Offline: the source is parsed, never
    run."""
    scripts = scripts_of(config)
    found: list[str] = []
    for field, script in scripts.items():
        if script is None:
            continue
        if script.facts is None:
            missing = explain_missing(script, f"{field}: {script.started.words}")
            found += [missing] if missing else []
        else:
            found += _arguments(field, script.started, script.facts)
    facts = facts_in(scripts.values())
    if facts is not None:
        whole = all(script and script.facts for script in scripts.values())
        found += _strategy(config, facts) if whole else ()
        found += [line for notes in _SCRIPT_NOTES for line in notes(config, facts)]
    return tuple(found)


def _unreadable(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    version = "{}.{}".format(*sys.version_info[:2])
    for use in facts.unreadable:
        yield f"{use}: not checked, as Python {version} cannot parse it: {use.name}"


def _strategy(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    own, found = strategy_of(config), strategies_in(facts)
    any_role = not own.roles and not own.single_node
    if not found or own.name in found or any_role:
        return
    name, use = next(iter(found.items()))
    is_free = not STRATEGIES[name].roles and not STRATEGIES[name].single_node
    if is_free and "ps" in own.roles:
        return  # parameter servers with a session, as in TensorFlow 1
    what = use.name.removeprefix("tensorflow.")
    only = strategy_in(facts)
    advice = f": set `strategy: {only}`" if only and STRATEGIES[only].launched else ""
    yield f"{use}: {what}, but the config has `strategy: {own.name}`{advice}"


def _release(config: ClusterConfig) -> tensorflow_releases.Release | None:
    version = config.setup.tensorflow
    if version is None or not tensorflow_releases.VERSION.fullmatch(version):
        return None
    return tensorflow_releases.release(version)


def _releases(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    release, version = _release(config), config.setup.tensorflow
    if release is None:
        return
    spans: dict[tuple[object, object], list[MissingName]] = {}
    for need in missing_in(release, facts):
        spans.setdefault((need.first, need.last), []).append(need)
    for first, *others in spans.values():
        more = f" (and {len(others)} more such names)" if others else ""
        name = first.name.removeprefix(".")
        advice = f'set `setup.tensorflow: "{first.advised}"`'
        yield f"{first.use}: {name}{more} is not in TensorFlow {version}: {first}; {advice}"


def _keras(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    release, own = _release(config), strategy_of(config)
    if release is None or release < KERAS_3 or own.keras_3 == "works":
        return
    if own.keras_3 == "fit_fails" and _training_tasks(config) < 2:
        return
    use = next((use for use in facts.names if use.name.partition(".")[0] == "keras"), None)
    if use is not None and use.sure:
        yield (
            f"{use}: `import keras` is Keras 3, whatever `setup.keras` says, and its fit does not "
            f"work with {own.name}: use `from tensorflow import keras`"
        )


def _uris(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    cloud = cloud_of(config.provider)
    if cloud is None:
        return  # other machines may have credentials of their own
    opened = cloud.bucket_schemes if config.identity is not None else ()
    lines = command_lines(config).values()
    overridden = {
        option.default_uri
        for option in facts.arguments.options
        if any(name in line for name in option.names for line in lines)
    }
    for use in _first_of_each(facts.uris):
        if use.name in overridden or use.name.partition("://")[0] in opened:
            continue
        way = "" if config.identity else "; or set `identity:`"
        yield (
            f"{use}: {use.name}: nodes have no cloud identity for it and can read public buckets "
            f"at most: {INSTEAD}{way}"
        )


def _first_of_each(uses: tuple[Use, ...]) -> Iterator[Use]:
    seen: set[str] = set()
    for use in uses:
        if use.name not in seen:
            seen.add(use.name)
            yield use


def _chief(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    if not _gets_tf_config(config):
        return
    if "chief" not in config.nodes and facts.chief_only:
        yield (
            f"{facts.chief_only[0]}: compares the role with 'chief', but the config has none "
            "(`chief: false`): what only the chief saves is never written; treat worker 0 as the "
            "chief, or add one to `nodes`"
        )
    if "master" not in config.nodes and facts.master_only:
        yield (
            f"{facts.master_only[0]}: compares the role with 'master', but the role is called "
            "'chief' here: what only the master saves is never written"
        )


def _by_index(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    if not _gets_tf_config(config) or not {"chief", "worker"} <= config.nodes.keys():
        return
    for use in facts.by_index[:1]:
        yield (
            f"{use}: decides by the index alone, which is 0 for chief0 and for worker0: both take "
            "themselves for the chief; ask for the type 'chief', too"
        )


def _own_addresses(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    if _training_tasks(config) < 2 or facts_of(config.provider).on_this_machine:
        return
    for use in facts.own_addresses[:1]:
        yield (
            f"{use}: {use.name} is given to the tasks as an address: on several nodes, each would "
            "look for it on its own; use the TF_CONFIG that is set, or placeholders such as "
            "`{worker.hosts}` in `train.command`"
        )


def _saves_on_ps(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    """Notes on ways of saving that fail with ps. Each way was run: docs/artifacts.md."""
    if "ps" not in config.nodes or config.shared is not None:
        return
    if any(use.name.endswith(".CheckpointOptions") for use in facts.names):
        return
    kept = config.train.checkpoints is not None and config.nodes["ps"].count == 1
    for use in facts.saves:
        what = use.name.rpartition(".")[2]
        if saving.way_of(use.name) == "object":
            yield (
                f"{use}: {what}: {PARTS}, and TensorFlow fails to merge them: {SHARE}, or save "
                "with "
                "tf.train.CheckpointOptions(experimental_io_device='/job:chief/task:0/device:CPU:0'"
                "), or, with `identity`, to a bucket"
            )
            return
        if not kept or facts.reads_back:
            yield (
                f"{use}: {what}: {PARTS}, so that no task can read a whole one (to evaluate, to "
                f"export, after a restart): {SHARE}, or use Saver(sharded=False), or, with "
                "`identity`, save to a bucket"
            )
            return


PARTS = "each ps writes its part of a checkpoint to its own disk"
SHARE = "name its folder in `shared` (`shared: job`), which all nodes share"


def _written_elsewhere(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    """A rented node's disk is deleted with it; of it land the work folder and the home."""
    if not is_cloud(config.provider):
        return
    lines = command_lines(config).values()
    for option in facts.arguments.options:
        name = max(option.names, key=len, default="")
        passed = any(each in line for each in option.names for line in lines)
        path = option.default_path
        if path is not None and not passed and says_written(name) and not _is_kept(path):
            yield (
                f"{option.file}:{option.line}: {name} is {shown(path)} by default, which is lost "
                f"with its node: add `{name} {{output}}` to train.command"
            )
    for use in _first_of_each(facts.written):
        if not _is_kept(use.name):
            yield (
                f"{use}: writes to {shown(use.name)}, which is lost with its node: what lands is "
                "the work folder and the home; write to a relative path, or to a folder that is "
                "passed as `{output}`"
            )


def _is_kept(path: str) -> bool:
    """True for what may be in a home, or is no file of a disk."""
    return path.startswith(("/home/", "/root/", "/dev/", "/proc/")) and not path.startswith(
        "/dev/shm/"
    )


def _evaluator(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    own = [use for use in facts.names if ".estimator." in use.name]
    release = _release(config)
    if not own or "evaluator" not in config.nodes or not _gets_tf_config(config):
        return
    if not for_estimator(config) and release is not None and release < KERAS_3:
        yield (
            f"{own[0]}: the evaluator of an Estimator refuses a cluster without a chief: set "
            "`train.tf_config: estimator`"
        )


def _restores(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    own = (use for use in facts.names if use.name.endswith(_RESTORERS))
    use = next(own, None)
    if use is None or config.train.checkpoints is not None:
        return
    what_by = use.name.rpartition(".")[2]
    if not config.train.max_restarts and what_by != "BackupAndRestore":
        return
    if not config.train.max_restarts:
        what = "nothing resumes from it without `train.checkpoints` and `train.max_restarts`"
    elif strategy_of(config).restart == "all_anew" and _training_tasks(config) > 1:
        what = "without `train.checkpoints`, each restart starts from the beginning"
    elif is_cloud(config.provider):
        what = "without `train.checkpoints`, a restart on a new node starts from the beginning"
    else:
        return
    yield f"{use}: {what_by}: {what}"


_RESTORERS = (".BackupAndRestore", ".train.CheckpointManager")


def _tf_config(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    gets = _gets_tf_config(config)
    for use in facts.tf_config:
        if not gets and not use.name:
            hint = "set `train.tf_config: true`, or read it with os.environ.get"
            yield f"{use}: TF_CONFIG is not set in this run: {hint}"
        elif gets and use.name:
            first, _, rest = use.name.partition(".")
            part = rest.partition(".")[0] if first == "cluster" else rest
            known = {"cluster": ("", *config.nodes), "task": ("", "type", "index")}
            if part not in known.get(first, ()):
                yield f"{use}: TF_CONFIG has no {use.name!r} here"


def _collectives(config: ClusterConfig, facts: ScriptFacts) -> Iterator[str]:
    """The log shows what is really used: `training/log_text.reduces_over_grpc`."""
    if facts.default_collectives and interconnect.gpu_nodes(make_plan(config)) > 1:
        from cloudtrain.training.log_text import NCCL, OLD_NCCL  # with many patterns

        use = facts.default_collectives[0]
        choice = OLD_NCCL if ".experimental." in use.name else NCCL
        yield (
            f"{use}: MultiWorkerMirroredStrategy reduces the gradients of several nodes over gRPC, "
            f"through the CPU: pass {choice} to it"
        )


def _arguments(field: str, started: Started, facts: ScriptFacts) -> Iterator[str]:
    standard = frozenset(sys.stdlib_module_names)
    found = argument_problems(facts, started.arguments, exact=started.exact, standard=standard)
    for text in found:
        option = facts.arguments.options[0]
        later = " (or after `train NAME --`)" if "required" in text else ""
        yield f"{field}: {text}{later}; {option.file}:{option.line} defines its arguments"


def _training_tasks(config: ClusterConfig) -> int:
    return sum(group.count for role, group in config.nodes.items() if role != "evaluator")


def _gets_tf_config(config: ClusterConfig) -> bool:
    if config.train.tf_config is True:
        return True
    return wants_tf_config(config) and _training_tasks(config) > 1


_SCRIPT_NOTES: tuple[Callable[[ClusterConfig, ScriptFacts], Iterator[str]], ...] = (
    _unreadable,
    _releases,
    _keras,
    _uris,
    _chief,
    _by_index,
    _own_addresses,
    _saves_on_ps,
    _written_elsewhere,
    _evaluator,
    _restores,
    _tf_config,
    _collectives,
)


# ── every note ─────────────────────────────────────────────────────────────────


def _of_hosts(config: ClusterConfig) -> str | None:
    return open_ports_note(config) if facts_of(config.provider).takes_hosts else None


def _of_the_script(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on the script; that on a ps in general only if none names the line that saves."""
    found = script_notes(config)
    general = None if any(PARTS in note for note in found) else part_note(config)
    return found if general is None else (general, *found)


_NOTES: tuple[tuple[str, Callable[[ClusterConfig], str | Iterable[str] | None]], ...] = (
    ("check", rights_notes),
    ("plan", tensorflow.newer_note),
    ("plan", tensorflow.python_note),
    ("plan", tensorflow.keras_note),
    ("plan check", tensorflow.keras_warning),
    ("plan", code_packages.note),
    ("plan", image_note),
    ("plan check", access_note),
    ("plan", _of_hosts),
    ("check", open_ports_note),
    ("plan check", evaluator_note),
    ("plan check", idle_gpu_note),
    ("plan check", setup_notes),
    ("plan check", marked),
    ("plan check", placeholder_notes),
    ("plan", _of_the_script),
    ("check", script_notes),
    ("plan check", import_notes),
    ("check", program_notes),
    ("plan check", bucket_notes),
    ("plan check", path_notes),
    ("plan", _unset_secrets),
)
"""The commands that show a note, and what makes it."""


def notes(config: ClusterConfig, command: Literal["plan", "check"] = "plan") -> tuple[str, ...]:
    """Notes on configs that work, but hardly as intended."""
    found = (ask(config) or () for commands, ask in _NOTES if command in commands.split())
    return tuple(chain.from_iterable((each,) if isinstance(each, str) else each for each in found))
