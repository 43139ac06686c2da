"""First things that people type at the shell, and what they are told."""

from __future__ import annotations

import pytest

from tests.support.project import Project


def test_the_script_is_told_of(project: Project) -> None:
    done = project.cloudtrain("init", "--output", "new.yaml")
    assert done.stdout == "wrote new.yaml; next: cloudtrain plan new.yaml\n"
    (project.folder / "empty").mkdir()
    done = project.cloudtrain("init", "--output", "empty/new.yaml")
    assert "wrote empty/new.yaml and an example train.py; next" in done.stdout


@pytest.mark.parametrize(
    ("word", "meant"),
    [("launch", "run"), ("cancel", "stop-run"), ("ps", "status"), ("apply", "up")],
)
def test_words_of_other_tools_are_understood(project: Project, word: str, meant: str) -> None:
    done = project.cloudtrain(word)
    assert done.returncode == 2
    assert done.stderr.endswith(f"hint: did you mean `cloudtrain {meant}`?\n")


def test_a_shell_that_is_none_is_called_so(project: Project) -> None:
    done = project.cloudtrain("completion", "ksh")
    assert "Invalid value for '[SHELL]': 'ksh' is not one of 'bash', 'zsh', 'fish'" in done.stderr


def test_a_large_plan_shows_the_first_of_each_role_unless_asked_for_all(project: Project) -> None:
    config = project.config(
        strategy="parameter_server",
        nodes={"chief": {}, "worker": {"count": 40}, "ps": {"count": 8}, "evaluator": {}},
    )
    plan = project.cloudtrain("plan", config).stdout
    heads = [line for line in plan.splitlines() if line.startswith(f"  {project.name}-")]
    assert [line.split("  ")[1].removeprefix(f"{project.name}-") for line in heads] == [
        "chief0",
        "worker0 and 39 more",
        "ps0 and 7 more",
        "evaluator0",
    ]
    assert 'TF_CONFIG  as above, with the task {"type": "ps", "index": 0}' in plan
    assert plan.count(f"<{project.name}-worker39>") == 1
    every = project.cloudtrain("plan", config, "--all").stdout
    assert every.count("    command    ") == 50


def test_a_store_that_is_not_there_is_an_error_and_an_empty_one_is_said_so(
    project: Project,
) -> None:
    nowhere = (project.folder / "not there").as_uri()
    done = project.cloudtrain("status", "--store", nowhere)
    assert done.returncode == 5
    assert f"error: {nowhere}: no such folder" in done.stderr
    project.store.mkdir()
    done = project.cloudtrain("status", "--store", project.store.as_uri())
    assert (done.returncode, done.stdout) == (
        0,
        f"no run has landed in {project.store.as_uri()}\n",
    )


def test_a_place_where_nothing_can_be_written_is_named_as_it_was_written(
    project: Project,
) -> None:
    config = project.config(artifacts={"store": "file:///proc/no/where"})
    done = project.cloudtrain("check", config)
    assert done.returncode == 5
    assert "cannot write to /proc/no/where: No such file or directory" in done.stdout
    assert ".partial" not in done.stdout
