"""Reads a shell's line into words whose variables stay visible, and writes words as a line of ours.

Only what submit lines use: quotes, backslashes, variables, substitutions, operators and comments
(https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html, Token Recognition)."""

from __future__ import annotations

import re
import shlex

from cloudtrain.node.key_shapes import looks_like_key_name

VARIABLE = ("\ue000", "\ue001")
"""Around a variable's name in a word, or a name with its default: `NAME:-text`."""
UNQUOTED = ("\ue007", "\ue008")
"""The same around one that is not quoted: its value may be several words, or none."""
SUBSTITUTION = ("\ue002", "\ue003")
"""Around the text of a `$(…)`."""
OPERATORS = "\ue004"
"""Before an operator such as `&&`, which is a word of its own."""
OURS = ("\ue005", "\ue006")
"""Around the name of a placeholder of ours, such as output."""
OWN = "\ue009"
"""What a variable already is on the node, in a value that extends it: `PATH=/opt/bin:$PATH`."""
_PRIVATE = "\ue000\ue001\ue002\ue003\ue004\ue005\ue006\ue007\ue008\ue009"
_SAFE = re.compile(r"[\w@%+=:,./\ue005\ue006-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_MARKED = re.compile(
    "[\ue000\ue007]([^\ue000-\ue004\ue007\ue008]*)[\ue001\ue008]|\ue002([^\ue000-\ue004]*)\ue003"
)
_SPLIT = re.compile("(\ue007[^\ue007\ue008]*\ue008)")
_DEFAULT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):?-([^$`{}\"'\\]*)")
_PLACEHOLDER = re.compile(r"\{(?=[a-z][A-Za-z0-9_.]*\})")
_FILLED = r"(output|role|index|run|chief\.ip|data\.[A-Za-z0-9_-]+|[a-z]+\.hosts)\}"


def clean(text: str) -> str:
    """The text without the characters that this module uses as marks."""
    return text.translate({ord(mark): None for mark in _PRIVATE})


def words(line: str) -> list[str]:
    """Words of a shell's line. An operator or the end of a command is a word that begins with
    OPERATORS. Raises ValueError for a quote or a bracket that is not closed."""
    return _Lexer(clean(line).replace("\r\n", "\n")).words()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: list[str] = []
        self.word: list[str] | None = None

    def words(self) -> list[str]:
        while self.at < len(self.text):
            self.step()
        self.end()
        return self.found

    def step(self) -> None:
        char = self.text[self.at]
        if char in " \t":
            self.at += 1
            self.end()
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in ";&|<>\n()":
            self.end()
            run = re.match(r"[;&|<>\n()]+", self.text[self.at :])
            assert run
            self.at += run.end()
            self.found.append(OPERATORS + run[0])
        elif char == "'":
            self.add(self.until("'"))
        elif char == '"':
            self.at += 1
            self.quoted()
        elif char == "\\":
            self.escape(self.text[self.at + 1 : self.at + 2])
        elif char in "$`":
            self.add(unquoted(self.dollar()))
        else:
            self.at += 1
            self.add(char)

    def escape(self, after: str) -> None:
        self.at += 2
        if after != "\n":
            self.add(after)

    def quoted(self) -> None:
        self.add("")
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                self.escape(self.text[self.at + 1])
            elif char in "$`":
                self.add(self.dollar())
            else:
                self.at += 1
                self.add(char)
        raise ValueError('a " is not closed')

    def dollar(self) -> str:
        rest = self.text[self.at :]
        if rest[0] == "`":
            return SUBSTITUTION[0] + self.until("`") + SUBSTITUTION[1]
        if rest.startswith("$("):
            return SUBSTITUTION[0] + self.bracket("(", ")") + SUBSTITUTION[1]
        if rest.startswith("${"):
            inside = self.bracket("{", "}")
            if default := _DEFAULT.fullmatch(inside):
                return f"{VARIABLE[0]}{default[1]}:-{default[2]}{VARIABLE[1]}"
            name = _NAME.match(inside)
            if name and name[0] == inside:
                return VARIABLE[0] + inside + VARIABLE[1]
            return f"{SUBSTITUTION[0]}${{{inside}}}{SUBSTITUTION[1]}"
        name = _NAME.match(rest[1:])
        if not name:
            self.at += 1
            return "$"
        self.at += 1 + name.end()
        return VARIABLE[0] + name[0] + VARIABLE[1]

    def bracket(self, opening: str, closing: str) -> str:
        depth, start = 0, self.at + 2
        for end in range(self.at + 1, len(self.text)):
            depth += {opening: 1, closing: -1}.get(self.text[end], 0)
            if depth == 0:
                self.at = end + 1
                return self.text[start:end]
        raise ValueError(f"a ${opening} is not closed")

    def until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise ValueError(f"a {quote} is not closed")
        found = self.text[self.at + 1 : end]
        self.at = end + 1
        return found

    def add(self, text: str) -> None:
        self.word = self.word or []
        self.word.append(text)

    def end(self) -> None:
        if self.word is not None:
            self.found.append("".join(self.word))
        self.word = None


def unquoted(text: str) -> str:
    """The text with its variables as those that no quotes surround."""
    return text.translate(_UNQUOTED)


def quoted(text: str) -> str:
    """The text with its variables as parts of one word."""
    return text.translate(_QUOTED)


_UNQUOTED = {ord(a): b for a, b in zip(VARIABLE, UNQUOTED, strict=True)}
_QUOTED = {ord(a): b for a, b in zip(UNQUOTED, VARIABLE, strict=True)}


def unknown(word: str) -> list[str]:
    """Variables and substitutions in a word, as a shell writes them."""
    return [_shown(name, text) for name, text in _MARKED.findall(word)]


def filled(word: str, known: dict[str, str]) -> list[str]:
    """The words that a word becomes with the variables that are known; the others stay marked. As
    in a shell, the value of an unquoted one is split, and a word of nothing else may vanish."""
    found, open_word = [""], False
    for piece in _SPLIT.split(word):
        name = piece[1:-1].partition(":-")[0]
        if not _SPLIT.fullmatch(piece) or name not in known:
            found[-1] += _MARKED.sub(lambda mark: _value(mark, known), piece)
            open_word = open_word or bool(piece)
            continue
        value = unquoted(known[name])
        first, *more = _fields(value)
        if first:
            found[-1] += first
            open_word = True
        for part in more:
            if open_word:
                found.append("")
            found[-1] += part
            open_word = bool(part)
    if not open_word and (len(found) > 1 or _SPLIT.search(word)):
        found.pop()
    return found


def _value(mark: re.Match[str], known: dict[str, str]) -> str:
    name = (mark[1] or "").partition(":-")[0]
    return quoted(known[name]) if name in known else mark[0]


def _fields(value: str) -> list[str]:
    """The value split at its white space, but not within a mark."""
    whole = re.sub(
        f"\ue002[^\ue003]*\ue003|{_SPLIT.pattern}",
        lambda mark: re.sub(r"[ \t\n]", "\ue004", mark[0]),
        value,
    )
    return [part.replace("\ue004", " ") for part in re.split(r"[ \t\n]+", whole)]


def settled(word: str) -> str:
    """The word with a variable's default in its place; the others stay marked."""

    def default(found: re.Match[str]) -> str:
        _, given, text = (found[1] or "").partition(":-")
        return text if given else found[0]

    return _MARKED.sub(default, word)


def with_defaults(word: str) -> str:
    """The word with the defaults of its variables; a variable without one as a shell writes it."""
    return _MARKED.sub(
        lambda found: (found[1] or "").partition(":-")[2] or _shown(found[1], found[2]), word
    )


def without_marks(word: str) -> str:
    """The parts of a word that are known."""
    return _MARKED.sub("", word)


def plain(word: str) -> str:
    """The word as a shell writes it, for messages."""
    return _MARKED.sub(lambda found: _shown(found[1], found[2]), word)


def _shown(name: str | None, substitution: str) -> str:
    if not name:
        return substitution if substitution.startswith("${") else f"$({substitution})"
    return f"${{{name}}}" if ":-" in name else f"${name}"


def shell_line(argv: list[str]) -> str:
    """A command line that runs these words, as a config writes it. Braces that would be a
    placeholder of ours and `${` stay as they are for the program; a variable of the submitting
    shell becomes `${NAME:-FILL_IN_NAME}`."""
    return " ".join(map(_quoted, argv))


def script_line(text: str) -> str:
    """A shell's own line as a config writes it: the node's shell expands its variables. `${index}`
    is `${index:-}`, as `{index}` would be filled; `placeholders` finds the rest."""
    return re.sub(rf"\$\{{{_FILLED}", r"${\1:-}", text).replace("${", "$${")


def placeholders(text: str) -> list[str]:
    """Placeholders that cloudtrain would fill in a shell's own line."""
    return [f"{{{name}}}" for name in re.findall(rf"(?<!\$)\{{{_FILLED}", text)]


def credentials(word: str) -> list[str]:
    """Variables of a word that are credentials: the task has them, and no line of a config."""
    names = (found[1].partition(":-")[0] for found in _MARKED.finditer(word) if found[1])
    return [name for name in names if looks_like_key_name(name)]


def with_own_credentials(line: str) -> str:
    """A shell's line in which the node's shell fills in credentials."""

    def written(found: re.Match[str]) -> str:
        return f"$${{{name}}}" if (name := "".join(credentials(found[0]))) else found[0]

    return _MARKED.sub(written, line)


def _quoted(word: str) -> str:
    quoted, at = "", 0
    for found in _MARKED.finditer(word):
        if own := credentials(found[0]):
            before = word[at : found.start()]
            quoted += f'{_quoted_text(before) if before else ""}"$${{{own[0]}}}"'
            at = found.end()
    return quoted + (_quoted_text(word[at:]) if word[at:] or not quoted else "")


def _quoted_text(word: str) -> str:
    pieces = _SPLIT.split(word)
    return "".join(
        marked_text(_plain_default(piece)) if at % 2 else _quoted_piece(piece)
        for at, piece in enumerate(pieces)
        if piece or len(pieces) == 1
    )


def _quoted_piece(word: str) -> str:
    quoted = word if _SAFE.fullmatch(word) else shlex.quote(word)
    if "{" in word:
        quoted = _PLACEHOLDER.sub("{''", quoted)
    return marked_text(quoted.replace("${", "$${"))


def _plain_default(mark: str) -> str:
    """An unquoted variable whose default the shell splits into words, and does no more with."""
    name, given, default = mark.partition(":-")
    default = default.removesuffix(UNQUOTED[1])
    if not given or re.fullmatch(r"[\w@%+=:,./ -]*", default, re.ASCII):
        return mark
    try:
        return f"{name}:-{shlex.join(shlex.split(default))}{UNQUOTED[1]}"
    except ValueError:
        return f"{name}:-{shlex.quote(default)}{UNQUOTED[1]}"


def marked_text(text: str) -> str:
    """A text with its marks as a config writes them."""

    def written(found: re.Match[str]) -> str:
        name, has_default, default = (found[1] or "").partition(":-")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            return "FILL_IN"
        return f"${{{name}:-{default if has_default else f'FILL_IN_{name}'}}}"

    return _MARKED.sub(written, text).replace(OURS[0], "{").replace(OURS[1], "}")


def ours(name: str) -> str:
    """A placeholder of ours in a word: `{output}`."""
    return OURS[0] + name + OURS[1]


def literal(text: str) -> str:
    """A text as a config's value: `${` stays as it is."""
    return text.replace("${", "$${")
