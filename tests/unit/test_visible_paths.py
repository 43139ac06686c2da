"""What of this machine a local node may see: nothing for a stranger's or a token's sake."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.providers.local import environment


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def test_a_file_of_a_stranger_does_not_say_what_is_shown(tmp_path: Path) -> None:
    """`home` of the pyvenv.cfg beside the interpreter that a config names."""
    secret = tmp_path / "home" / ".ssh"
    secret.mkdir(parents=True)
    named = program(tmp_path / "repository" / "env" / "bin" / "python")
    settings = tmp_path / "repository" / "env" / "pyvenv.cfg"
    shown = {named, named.parent.parent}
    for base in (secret, secret / "bin", tmp_path / "home"):
        settings.write_text(f"home = {base}\n")
        assert set(environment.interpreter(named)) == shown
    (secret / "id_ed25519").touch(mode=0o600)
    assert list(environment.interpreter(secret / "id_ed25519")) == []
    real = program(tmp_path / "python" / "bin" / "python3")
    (tmp_path / "python" / "lib").mkdir()
    settings.write_text(f"home = {real.parent}\n")
    assert set(environment.interpreter(named)) == {*shown, real.parent, real.parent.parent}


def test_a_folder_of_programs_does_not_show_the_tokens_beside_it(tmp_path: Path) -> None:
    program(tmp_path / ".docker" / "bin" / "docker")
    (tmp_path / ".docker" / "config.json").write_text("a token")
    assert list(environment._around(tmp_path / ".docker" / "bin")) == []
    (tmp_path / ".conda" / "conda-meta").mkdir(parents=True)
    conda = program(tmp_path / ".conda" / "bin" / "python")
    assert list(environment._around(conda.parent)) == [tmp_path / ".conda"]


def test_nodes_of_one_folder_share_what_others_do_not_see(tmp_path: Path) -> None:
    from tests.support.fakes import make_plan

    config = make_plan("mnist").config
    own = environment.own_cache(config, tmp_path)
    assert own.parent == tmp_path / environment.OWN
    view = environment.view_of_nodes(
        config, state=tmp_path / "state", cache=tmp_path, environ={"HOME": str(tmp_path)}
    )
    assert view is not None
    assert str(own.parent) in view.hidden
    assert str(tmp_path) in view.read_only
    assert "/run" in view.hidden
