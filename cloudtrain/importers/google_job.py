"""Common parts of AI Platform's and Vertex AI's jobs: place, store, rights, package, arguments."""

from __future__ import annotations

import re
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.code_folder import put_setup_py
from cloudtrain.importers.command_line import is_file, name_uris, put_code
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.machines import cloud_of_google
from cloudtrain.importers.values import Value, Values

JOB_DIR = f"{shell_words.ours('output')}/job"


def put_name(draft: Draft, name: Value | None) -> None:
    """The job's name, without the parts that the submitting shell adds."""
    if name is not None:
        known(draft, name)
        draft.put("name", shell_words.without_marks(name.text), name)


def put_cloud(draft: Draft, project: Value | None, region: Value | None) -> None:
    cloud = cloud_of_google()
    draft.put("provider", cloud.name)
    if project is not None and known(draft, project):
        draft.put("project", project.text, project)
    if region is not None and known(draft, region):
        draft.put("placement", [region.text], region)


def known(draft: Draft, value: Value) -> bool:
    """False, and reported, for a value with a variable of the submitting shell."""
    names = shell_words.unknown(value.text)
    for name in dict.fromkeys(names):
        draft.lose(value, f"{name} of the submitting shell is not known here: fill in its value")
    return not names


def put_store(draft: Draft, output: Value | None) -> None:
    """The artifacts' store; a local output folder is no store. What the submitting shell alone
    knows of it is to be filled in; the rest stays.
    """
    if output is None:
        return
    uri = shell_words.quoted(output.text.rstrip("/"))
    unknown = dict.fromkeys(name for name in shell_words.unknown(uri) if ":-" not in name)
    if not uri.startswith(("gs://", shell_words.VARIABLE[0])):
        draft.lose(output, "is no gs:// URI: set artifacts.store")
        return
    for name in unknown:
        draft.lose(output, f"{name} of the submitting shell: export it, or fill in its value")
    text = shell_words.marked_text(shell_words.literal(_with_bucket(uri)))
    comment = f"{', '.join(unknown)} of the submitting shell" if unknown else ""
    draft.put("artifacts.store", text, output, comment, fill_in=bool(unknown))


def _with_bucket(uri: str) -> str:
    """A bucket that the submitting shell alone knows is called as in the templates until it is
    set."""
    opening, closing = shell_words.VARIABLE
    if uri.startswith(opening):
        return re.sub(rf"^{opening}(\w+){closing}", rf"{opening}\1:-gs://my-bucket{closing}", uri)
    bucket, slash, rest = uri.removeprefix("gs://").partition("/")
    bucket = re.sub(rf"{opening}(\w+){closing}", rf"{opening}\1:-my-bucket{closing}", bucket)
    bucket = re.sub("\ue002[^\ue003]*\ue003", "my-bucket", bucket)
    return f"gs://{bucket}{slash}{rest}"


def put_rights(draft: Draft, account: Value | None, network: Value | None) -> None:
    if account is not None and known(draft, account):
        draft.put("identity", account.text, account, "for scripts that use buckets themselves")
    if network is not None and known(draft, network):
        name = network.text.rpartition("/")[2]
        draft.lose(network, f"choose a subnet of {name} with network.subnet")


def put_arguments(
    draft: Draft, arguments: list[Value], output: Value | None, folder: str = JOB_DIR
) -> list[str]:
    """The script's arguments: what it writes below the job's folder goes to {output}."""
    base = shell_words.quoted(output.text.rstrip("/")) if output else ""
    found = []
    for value in arguments:
        text = value.text
        if base.startswith(("gs://", shell_words.VARIABLE[0])) and base in shell_words.quoted(text):
            whole = rf"{re.escape(base)}(?=/|$)"
            text = re.sub(whole, lambda _: folder, shell_words.quoted(text))
        for name in dict.fromkeys(shell_words.unknown(text)):
            if ":-" not in name:
                why = f"{name} of the submitting shell: export it, or fill in its value"
                draft.lose(value, why)
        name_uris(draft, value, text)
        found.append(text)
    return found


def put_package(draft: Draft, path: Value, folders: tuple[Path, ...], base: Path) -> None:
    """`--package-path multi/trainer`: its parent is the code, with setup.py's packages."""
    if not known(draft, path):
        return
    package = next((f / path.text for f in folders if (f / path.text).is_dir()), None)
    if package is None:
        draft.lose(path, f"no folder {path.text}: set code.path to its parent")
        return
    folder = package.resolve().parent
    put_code(draft, folder, base, path)
    put_setup_py(draft, folder)


def put_packages(draft: Draft, uris: list[Value]) -> None:
    """Built packages: their source is what is delivered here."""
    for uri in uris:
        if known(draft, uri):
            draft.lose(
                uri, f"{uri.text} is a built package: set code.path or code.git to its source"
            )


def put_found_package(draft: Draft, module: str, folders: tuple[Path, ...], base: Path) -> None:
    """Without a package path: the folder here in which the module is."""
    if draft.has("code") or not re.fullmatch(r"[A-Za-z_][\w.]*", module):
        return
    for folder in folders:
        file = folder.joinpath(*module.split("."))
        if is_file(file.with_name(f"{file.name}.py")) or is_file(file / "__main__.py"):
            put_code(draft, folder.resolve(), base, None)
            put_setup_py(draft, folder)
            return


def put_scheduling(draft: Draft, scheduling: Values, running: str) -> None:
    """The longest run; its nodes live an hour longer, for boot and landing."""
    limit = scheduling.take(running)
    if limit is None:
        return
    seconds = re.fullmatch(r"([0-9]{1,8})(\.[0-9]+)?s", limit.text)
    if not seconds or int(seconds[1]) == 0:
        draft.lose(limit, "is no duration such as 7200s: set train.deadline")
        return
    draft.put("train.deadline", f"{seconds[1]}s", limit)
    draft.put("limits.max_lifetime", f"{int(seconds[1]) + 3600}s", limit, "the run and an hour")
