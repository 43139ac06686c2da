"""Imports run one way."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

from cloudtrain.core.presign import Presigner
from cloudtrain.core.protocols import ArtifactStore, HostKeys, StoreBackend, Transport
from cloudtrain.core.ship import program
from cloudtrain.providers import NAMES
from cloudtrain.training.strategies import STRATEGIES
from tests.support.sources import nodes, parsed, text_of, walked

PACKAGE = Path(__file__).parents[2] / "cloudtrain"

PAGE = PACKAGE.parent / "docs" / "internals" / "architecture.md"
FLOORS = {
    room: int(floor)
    for floor, room in re.findall(r"^\| (\d+) \| `(\w+)/?`", PAGE.read_text("utf-8"), re.MULTILINE)
}
"""Of each package: it imports from lower floors alone (docs/internals/architecture.md)."""


@cache
def modules() -> list[Path]:
    folders = (PACKAGE, PACKAGE / "providers", PACKAGE / "playbooks")
    paths = {path for folder in folders for path in folder.rglob("*.py")}
    return sorted(path for path in paths if path.name != "__init__.py")


@cache
def imports(path: Path) -> set[str]:
    found = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
    for node in nodes(path, ast.ImportFrom):
        if node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "cloudtrain" else {node.module}
    return found


def test_role_and_index_become_a_name_in_one_place() -> None:
    made = [path.name for path in modules() if re.search(r"role\}\{[\w.]*index", text_of(path))]
    assert made == ["task_id.py"]


def test_only_a_plan_chooses_machines() -> None:
    """Others take a node's machine from it: resolved again, it may be another one."""
    callers = [path.name for path in modules() if "resolve_group(" in text_of(path)]
    assert callers == ["plan.py"]


def test_only_events_py_looks_into_the_lines_of_the_journal() -> None:
    for path in modules():
        if path.relative_to(PACKAGE).as_posix() != "core/events.py":
            text = text_of(path)
            assert '["event"]' not in text, path
            assert '.get("event")' not in text, path


ASKS_THE_REGISTRY = ("core/cloud.py", "cluster/session.py")
"""The files that load modules of providers/: one their facts, the other what they do."""

SHARED_WITH_THE_CONFIG = {"hosts", "local"}
"""Names of providers that are ordinary words, too: they count where a provider is compared."""

CLOUDS = set(NAMES) - SHARED_WITH_THE_CONFIG


TOY = PACKAGE.parent / "tests" / "toy_cloud" / "providers" / "toy"


def test_a_cloud_of_its_own_is_a_folder_of_at_most_250_lines_besides_its_tables() -> None:
    assert sum(len(path.read_text("utf-8").splitlines()) for path in TOY.glob("*.py")) <= 250


def names_a_provider(path: Path) -> list[str]:
    """Lines with a cloud's name as a string, and those that compare a provider with any."""
    strings = nodes(path, ast.Constant)
    found = [f"{node.lineno}: {node.value!r}" for node in strings if node.value in CLOUDS]
    for node in nodes(path, ast.Compare):
        sides = [node.left, *node.comparators]
        sides += [each for side in sides if isinstance(side, ast.Tuple) for each in side.elts]
        values = {side.value for side in sides if isinstance(side, ast.Constant)}
        if values & SHARED_WITH_THE_CONFIG and "provider" in ast.unparse(node):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def core() -> list[Path]:
    return [path for path in modules() if "providers" not in path.relative_to(PACKAGE).parts]


def test_no_provider_is_named_outside_its_own_folder() -> None:
    assert {str(path): lines for path in core() if (lines := names_a_provider(path))} == {}


def test_only_the_session_and_the_registry_load_providers() -> None:
    """By name, as they are asked for: nobody imports one."""
    for path in core():
        assert not {name for name in imports(path) if name.startswith("cloudtrain.providers")}, path
        own = path.relative_to(PACKAGE).as_posix()
        if own not in ASKS_THE_REGISTRY:
            assert "cloudtrain.providers" not in text_of(path), path


def test_imports_run_one_way() -> None:
    wrong = [text for path in modules() for text in wrong_imports(path)]
    assert not wrong, "\n".join(wrong)


ALONE = {
    "providers": {"providers", "core", "node", "catalog", "identities", "money", "ssh", "training"},
    "playbooks": {"playbooks", "core", "node", "catalog", "config", "training"},
}
"""A cloud knows no file, record or store of ours; `fab` starts the fabfile as Python `__main__`."""


def wrong_imports(path: Path) -> list[str]:
    name = path.relative_to(PACKAGE).as_posix()
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    found = []
    for module in sorted(imports(path)):
        if module.split(".")[0] in {"providers", "playbooks", "configs"}:
            found.append(f"{name} imports {module} past cloudtrain")
        other = module.split(".")[1] if module.startswith("cloudtrain.") else own
        if other != own and FLOORS[other] >= FLOORS[own]:
            found.append(f"{name} imports {module}, which is not below {own}")
        if own in ALONE and other not in ALONE[own] and path.name != "fabfile.py":
            found.append(f"{name} imports {module}, of which {own} knows nothing")
    return found


def test_each_package_has_its_floor_and_what_its_own_first_line_says() -> None:
    text = PAGE.read_text("utf-8")
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert FLOORS.keys() == packages | {"api", "__main__"}
    for package in packages:
        doc = ast.get_docstring(parsed(PACKAGE / package / "__init__.py"))
        assert doc, package
        assert f"| `{package}/` | {doc.partition(chr(10))[0].rstrip('.')} |" in text, package


def asks_for_a_strategys_name(path: Path) -> list[str]:
    """Lines with such a name as a string, and those that compare a `.strategy` with a value."""
    compares = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
    strings = nodes(path, ast.Constant)
    found = [f"{node.lineno}: {node.value!r}" for node in strings if node.value in STRATEGIES]
    for node in nodes(path, ast.Compare):
        if isinstance(node.ops[0], compares):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr == "strategy" for side in sides):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_what_a_strategy_means_is_said_in_its_own_file_alone() -> None:
    elsewhere = [path for path in modules() if path.parent != PACKAGE / "training"]
    found = {str(path): lines for path in elsewhere if (lines := asks_for_a_strategys_name(path))}
    assert found == {}


def test_commands_return_values_and_leave_text_and_json_to_the_command_line() -> None:
    for path in (PACKAGE / "commands").glob("*.py"):
        tree = parsed(path)
        named = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        shown = [name for name in named if name.split("_")[-1] in ("json", "text", "document")]
        assert not shown, f"commands/{path.name}: {shown} belong to cli/"
        assert not imports(path) & {"json", "click", "rich"}, path.name


ON_NODES = sorted((PACKAGE / "node").glob("*.py"))
BROUGHT = {
    "horovod_ranks.py": {"horovod", "psutil"},
    "gpus_seen.py": {"tensorflow"},
    "compute_work.py": {"tensorflow"},
}
"""What is in the environment on the node whose Python runs them."""


def test_what_runs_on_nodes_has_only_the_standard_library_of_python_3_6() -> None:
    wrong = [text for path in ON_NODES for text in unfit_for_a_node(path)]
    assert not wrong, "\n".join(wrong)


def unfit_for_a_node(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(), path.name, feature_version=(3, 6))
    lines = path.read_text().splitlines()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        here = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.module == "cloudtrain.node":
            if lines[node.lineno - 1].strip() != ast.unparse(node):
                found.append(f"{here}: ship.py finds what to bring by lines of their own")
            missing = [name for name in names if not (path.parent / f"{name}.py").exists()]
            found += [f"{here}: no module {name}" for name in missing]
            continue
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if "__future__" in names:
            found.append(f"{here}: annotations: of 3.7")
        known = sys.stdlib_module_names | BROUGHT.get(path.name, set())
        found += [
            f"{here}: {name} is not in the standard library"
            for name in names
            if name.split(".")[0] not in known
        ]
    return found


def test_node_holds_what_runs_on_nodes_and_nothing_else() -> None:
    assert {path.suffix for path in (PACKAGE / "node").iterdir() if path.is_file()} == {
        ".py",
        ".sh",
    }


def test_a_program_brings_each_module_that_it_may_import() -> None:
    for path in ON_NODES:
        if "def main(" not in text_of(path) or path.name in BROUGHT:
            continue
        brought = set(ast.literal_eval(program(path.stem).source.decode("ascii")))
        needed = {"cloudtrain", "cloudtrain.node", f"cloudtrain.node.{path.stem}"}
        for name in brought - {"cloudtrain", "cloudtrain.node"}:
            for node in nodes(path.with_name(f"{name.rpartition('.')[2]}.py"), ast.ImportFrom):
                if node.module == "cloudtrain.node":
                    needed |= {f"cloudtrain.node.{alias.name}" for alias in node.names}
        assert brought == needed


def test_an_error_is_never_changed_once_it_was_raised() -> None:
    """`copy_with` makes another."""
    for path in modules():
        if any(changed_name(node) not in ("", "self") for node in nodes(path, ast.Attribute)):
            for function in nodes(path, ast.FunctionDef):
                own = tuple(ast.walk(function))
                errors = errors_in(own)
                changed = [node for node in own if changed_name(node) in errors]
                assert not changed, [f"{path}: {ast.unparse(node)}" for node in changed]


def changed_name(node: ast.AST) -> str:
    """`name` of a `name.attribute = …`."""
    is_store = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return node.value.id if is_store and isinstance(node.value, ast.Name) else ""


def errors_in(nodes: tuple[ast.AST, ...]) -> set[str]:
    """What a function catches, and what it is given as an error."""
    caught = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    given = {
        node.arg
        for node in nodes
        if isinstance(node, ast.arg) and node.annotation is not None
        if re.search("Error|Exception|Refused|Failed", ast.unparse(node.annotation))
    }
    return caught | given


def sleeps(path: Path) -> bool:
    text = text_of(path)
    return "sleep" in text and any(
        (isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep")
        or (isinstance(node, ast.ImportFrom) and "sleep" in (alias.name for alias in node.names))
        for node in walked(path)
    )


def test_time_sleep_is_called_by_retry_and_on_nodes_alone() -> None:
    """All else waits with a policy of `retry.py`, on a clock that a test can pass in; the program
    that sends notices imports the standard library alone."""
    own = {path.relative_to(PACKAGE).as_posix() for path in modules() if sleeps(path)}
    assert {name for name in own if not name.startswith("node/")} == {
        "core/retry.py",
        "report/send_notice.py",
    }
    assert not list(PACKAGE.rglob("waits.py")) + list(PACKAGE.rglob("patience.py"))


def reads_the_wall_clock(path: Path) -> list[str]:
    """Lines; the day of today, by which a table of prices is old, is no moment."""
    names = [node for node in nodes(path, ast.Attribute) if node.attr in READERS]
    calls = [node for node in nodes(path, ast.Call) if isinstance(node.func, ast.Attribute)]
    read = [node for node in names if ast.unparse(node) in WALL_CLOCK]
    now = [node for node in calls if not node.args and ast.unparse(node) in OF_NOW]
    found = [f"{node.lineno}: {ast.unparse(node)}" for node in (*read, *now)]
    for line in nodes(path, ast.ImportFrom):
        if line.module == "time":
            taken = {alias.name for alias in line.names} & {"time", "time_ns"}
            found += [f"{line.lineno}: from time import {name}" for name in taken]
    return found


WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
READERS = {name.rpartition(".")[2] for name in WALL_CLOCK}
OF_NOW = {"time.gmtime()", "time.localtime()", "time.ctime()", "time.asctime()"}


def test_the_wall_clock_is_read_in_one_place_and_on_nodes_alone() -> None:
    """It jumps, and may be wrong: moments are those of `moments.py`, or of a clock given in."""
    named = [path for path in modules() if re.search(r"\btime\b|datetime", text_of(path))]
    found = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in named
        if (lines := reads_the_wall_clock(path))
    }
    setting = {"rehearsal/faults.py"}  # what the others are rehearsed with
    assert {name for name in found if not name.startswith("node/")} == {"core/moments.py", *setting}


def methods(door: type) -> set[str]:
    own = {name: value for name, value in vars(door).items() if not name.startswith("_")}
    return {name for name, value in own.items() if callable(value)}


def test_a_transport_is_three_methods_and_its_host_keys_have_a_door_of_their_own() -> None:
    assert methods(Transport) == {"run", "ask", "close"}
    assert methods(HostKeys) == {"trust"}


def test_a_store_is_five_methods_and_signs_for_nodes_behind_a_door_of_its_own() -> None:
    assert methods(ArtifactStore) == {"list", "download", "upload", "copy", "delete"}
    assert methods(Presigner) == {"sign_upload", "sign_download", "complete"}
    assert methods(StoreBackend) == {"create", "check", "swap", "peek"}


def test_a_verb_is_a_story_of_35_lines_at_most() -> None:
    for verb in ("up", "run", "train", "down"):
        tree = parsed(PACKAGE / "commands" / f"{verb}.py")
        (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == verb)
        assert found.end_lineno is not None
        assert found.end_lineno - found.lineno < 35, f"{verb}: a line is what a user would name"


SUBORDINATE = ("How ", "What ", "When ", "Where ", "Whether ", "Which ", "Who ", "Why ")


def test_a_docstring_begins_with_a_verb_or_a_noun_phrase() -> None:
    defined = (ast.ClassDef, ast.FunctionDef)
    wrong = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in modules()
        for node in walked(path)
        if isinstance(node, defined) and (ast.get_docstring(node) or "").startswith(SUBORDINATE)
    }
    assert wrong == set(), "say what it is, or what it does"
