"""Shell functions for a TensorFlow that is newer than this version's table."""

from __future__ import annotations

from cloudtrain.core.ship import text

ASK = f"""\
# ask_index CANDIDATE…: asks for $asked (version, package, companions); sets $first and $last to
# Pythons with wheels, $without to the requirements in the place of companions that the index
# lacks. Any Python that makes environments brings the pip that asks.
ask_index() {{
    own_first=$first own_last=$last first=3.7 last=3.99
    search "$@" python3
    if [ -z "$python" ] && [ -n "$unable" ] && debian_install "$package"; then
        search "$@" python3
    fi
    first=$own_first last=$own_last
    [ -n "$python" ] || return 0
    rm -rf "$folder.index"
    "$python" -m venv "$folder.index" </dev/null
    set -- $asked
    version=$1
    shift
    echo "TensorFlow $version is newer than the table: asking the package index"
    answer=$folder.index/answer
    if "$folder.index/bin/python" -I - "$version" "$first" "$last" "$@" >"$answer" <<'END'
{text("newer_release.py")}END
    then
        pythons=$(sed -n 1p "$answer")
        without=$(sed -n 's/^without //p' "$answer")
        rm -rf "$folder.index"
    else
        rm -rf "$folder.index"
        exit 1
    fi
    last=${{pythons%% *}} first=${{pythons##* }}
    echo "it has wheels for Python $pythons"
    case " $without " in
        *tf-keras*)
            echo "the package index has no tf-keras of TensorFlow $version, which this needs" >&2
            echo "hint: set setup.keras or an earlier setup.tensorflow" >&2
            exit 1;;
    esac
}}
"""
"""Uses the functions and variables of scripts.ENVIRONMENT."""

TOLD = """\
if [ -n "$asked" ]; then
    "$folder/bin/python" -m pip freeze --disable-pip-version-check </dev/null 2>/dev/null |
        grep -iE '^(tensorflow|keras|tf.keras|numpy|protobuf|nvidia)' | tr '\\n' ' '
    echo
fi
"""
"""Shows what pip chose without bounds of ours."""
