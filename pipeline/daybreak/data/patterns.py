r"""Translates a regular expression of RE2 (DuckDB, BigQuery) to Java's syntax (Spark).

In Java `$` is also the place before a last line break, more than `\n` ends a line, `\s` has a character more,
`\b` and `\v` mean something else, brackets nest and `&&` intersects within a class, and names have no `_`.
"""

import re

_POSIX = {
    "alnum": "Alnum",
    "alpha": "Alpha",
    "ascii": "ASCII",
    "blank": "Blank",
    "cntrl": "Cntrl",
    "digit": "Digit",
    "graph": "Graph",
    "lower": "Lower",
    "print": "Print",
    "punct": "Punct",
    "space": "Space",
    "upper": "Upper",
    "xdigit": "XDigit",
}
_TOKEN = re.compile(
    r"\\Q(?P<text>.*?)(?:\\E|$)"
    r"|\\(?P<escaped>[pP](?:\{\^?\w+\}|\w)|x\{[0-9A-Fa-f]+\}|.)"
    r"|(?P<char>.)",
    re.DOTALL,
)
_GROUP = re.compile(r"\(\?P?<(?P<name>\w+)>|\(\?(?P<flags>[a-zA-Z-]+)(?P<close>[:)])")
_CLASS = re.compile(r"\[:(?P<sign>\^?)(?P<name>\w+):\]")
_WORD = "[0-9A-Za-z_]"
_OUTSIDE = {
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
    "v": r"\x0B",
    "b": f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))",
    "B": f"(?:(?<={_WORD})(?={_WORD})|(?<!{_WORD})(?!{_WORD}))",
}
_INSIDE = {"s": r"\t\n\f\r ", "S": r"\x00-\x08\x0B\x0E-\x1F\x21-\x{10FFFF}", "v": r"\x0B"}


def in_java(pattern: str) -> str:
    r"""Returns the pattern of Java that finds the same; ValueError where a class has no name there.

    >>> print(in_java(r"^\d+$"))
    (?d)^\d+\z
    """
    said, at, lines = ["(?d)"], 0, False  # (?d): only \n ends a line
    while at < len(pattern):
        if group := _GROUP.match(pattern, at):
            at = group.end()
            if group["flags"]:
                on, _, off = group["flags"].partition("-")
                lines = (lines or "m" in on) and "m" not in off
            said.append(_group(group))
        elif pattern[at] == "[":
            end = _end_of_class(pattern, at)
            said.append(_class(pattern[at:end]))
            at = end
        else:
            token = _TOKEN.match(pattern, at)
            assert token is not None
            at = token.end()
            said.append(r"\z" if token[0] == "$" and not lines else _token(token, _OUTSIDE))
    return "".join(said)


def _group(group: "re.Match[str]") -> str:
    if group["name"]:
        return f"(?<{group['name'].replace('_', '')}>"
    on, _, off = (flags.replace("U", "").replace("i", "iu") for flags in group["flags"].partition("-"))
    flags = f"{on}-{off}" if off else on
    return f"(?{flags}{group['close']}" if flags or group["close"] == ":" else ""


def _end_of_class(pattern: str, start: int) -> int:
    """Returns where a class ends; a `]` that comes first in it does not end it."""
    at = start + 1 + pattern.startswith("^", start + 1)
    at += pattern.startswith("]", at)
    while at < len(pattern) and pattern[at] != "]":
        named = _CLASS.match(pattern, at)
        at = named.end() if named else at + 1 + (pattern[at] == "\\")
    return at + 1


def _class(text: str) -> str:
    start = 2 if text.startswith("[^") else 1
    said, at = [text[:start]], start
    while at < len(text) - 1:
        if named := _CLASS.match(text, at):
            at = named.end()
            if named["name"] not in _POSIX:
                raise ValueError(f"Java has no [:{named['name']}:]")
            said.append(rf"\{'P' if named['sign'] else 'p'}{{{_POSIX[named['name']]}}}")
            continue
        token = _TOKEN.match(text, at)
        assert token is not None
        at = token.end()
        said.append(rf"\{token[0]}" if token[0] in ("[", "]", "&") else _token(token, _INSIDE))
    return "".join([*said, "]"])


def _token(token: "re.Match[str]", meant: dict[str, str]) -> str:
    if token["text"] is not None:
        return re.escape(token["text"])
    escaped = token["escaped"]
    if escaped is None:
        return token[0]
    if escaped[0] not in "pP":
        return meant.get(escaped, rf"\{escaped}")
    name = escaped[1:].strip("{}")
    sign = "P" if (escaped[0] == "P") != name.startswith("^") else "p"
    name = name.removeprefix("^")
    return rf"\{sign}{{{name if len(name) <= 2 else f'Is{name}'}}}"  # a script has `Is` before its name
