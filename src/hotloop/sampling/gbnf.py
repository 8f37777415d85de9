"""GBNF, the grammar notation of llama.cpp, as a grammar in Lark's syntax.

GBNF is built from characters. llguidance reads characters in lexemes, each a regular expression, so rules that refer to no
rule that refers back become lexemes (upper-case names): the text is the same and masks are quick.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hotloop.errors import InvalidRequestError

_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\#[^\r\n]*)
      | (?P<newline>\r\n|\r|\n)
      | (?P<define>::=)
      | (?P<name>[A-Za-z][A-Za-z0-9_-]*)
      | (?P<text>"(?:[^"\\\r\n]|\\.)*")
      | (?P<set>\[(?:[^\]\\\r\n]|\\.)*\])
      | (?P<repeat>[*+?]|\{[ \t]*[0-9]{1,6}[ \t]*(?:,[ \t]*(?:[0-9]{1,6})?[ \t]*)?\})
      | (?P<mark>[|().])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\\\"\[\]]))")
_CONTROL_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def gbnf_to_lark(text: str) -> str:
    """Raises InvalidRequestError with the line of what cannot be read."""
    rules = dict(_rules(_tokens(text)))
    if "root" not in rules:
        raise InvalidRequestError("grammar: there is no rule 'root' (GBNF) or 'start' (Lark)")
    for body in rules.values():
        for token in body:
            if token.kind == "name" and token.text not in rules:
                raise InvalidRequestError(f"grammar, line {token.line}: there is no rule {token.text!r}")
    lexemes = _lexemes(rules)
    names = {
        name: "start" if name == "root" else f"{'L' if name in lexemes else 'r'}{i}" for i, name in enumerate(rules)
    }
    return "".join(f"{names[name]}: {_body(body, names)}\n" for name, body in rules.items())


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidRequestError(f"grammar, line {line}: cannot read {text[position : position + 20]!r}")
        kind = str(match.lastgroup)
        if kind != "blank":
            yield _Token(kind, match.group(), line)
        line += kind == "newline"
        position = match.end()


def _rules(tokens: Iterator[_Token]) -> Iterator[tuple[str, list[_Token]]]:
    """Each rule's name and its body, without newlines and with balanced parentheses. A rule ends at the end of a line, but
    within parentheses and after '::=' or '|'."""
    seen: set[str] = set()
    everything = list(tokens)
    i = 0
    while i < len(everything):
        if everything[i].kind == "newline":
            i += 1
            continue
        name = everything[i]
        if name.kind != "name" or i + 1 == len(everything) or everything[i + 1].kind != "define":
            raise InvalidRequestError(f"grammar, line {name.line}: a rule begins with 'name ::='")
        if name.text in seen:
            raise InvalidRequestError(f"grammar, line {name.line}: the rule {name.text!r} is there already")
        seen.add(name.text)
        i += 2
        body: list[_Token] = []
        depth = 0
        while i < len(everything):
            token = everything[i]
            if token.kind == "newline":
                if not depth and body and body[-1].text != "|":
                    break
            elif token.kind == "define":
                raise InvalidRequestError(f"grammar, line {token.line}: '::=' within a rule")
            else:
                depth += (token.text == "(") - (token.text == ")")
                if depth < 0:
                    raise InvalidRequestError(f"grammar, line {token.line}: a ')' too many")
                body.append(token)
            i += 1
        if depth:
            raise InvalidRequestError(f"grammar, line {name.line}: a '(' of the rule {name.text!r} is not closed")
        yield name.text, body


def _lexemes(rules: dict[str, list[_Token]]) -> set[str]:
    """Rules from which no rule can be reached that refers back to itself. ``root`` is never one."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    open_references = {}
    for name, body in rules.items():
        references = {token.text for token in body if token.kind == "name"}
        open_references[name] = len(references)
        for reference in references:
            users[reference].append(name)
    ready = [name for name, count in open_references.items() if not count]
    found = set()
    while ready:
        name = ready.pop()
        found.add(name)
        for user in users[name]:
            open_references[user] -= 1
            if not open_references[user]:
                ready.append(user)
    return found - {"root"}


def _body(body: list[_Token], names: dict[str, str]) -> str:
    parts = []
    for token in body:
        match token.kind:
            case "name":
                parts.append(names[token.text])
            case "text":
                characters = "".join(_regex_char(c) for c in _characters(token, token.text[1:-1]))
                parts.append(f"/{characters}/" if characters else '""')
            case "set":
                parts.append(f"/{_character_set(token)}/")
            case "mark" if token.text == ".":
                parts.append("/(?s:.)/")
            case _:
                parts.append(token.text.replace(" ", "").replace("\t", ""))
    return " ".join(parts) or '""'


def _character_set(token: _Token) -> str:
    inner = token.text[1:-1]
    negated = inner.startswith("^")
    items = list(_characters(token, inner.removeprefix("^")))
    parts = []
    i = 0
    while i < len(items):
        if i + 2 < len(items) and items[i + 1] == "-":
            parts.append(f"{_regex_char(items[i])}-{_regex_char(items[i + 2])}")
            i += 3
        else:
            parts.append(_regex_char(items[i]))
            i += 1
    if not parts:
        raise InvalidRequestError(f"grammar, line {token.line}: {token.text} is a set of no characters")
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _characters(token: _Token, text: str) -> Iterator[str]:
    """Its characters, escapes resolved."""
    position = 0
    while position < len(text):
        if text[position] != "\\":
            yield text[position]
            position += 1
            continue
        match = _ESCAPE.match(text, position)
        code = match and (match[1] or match[2] or match[3])
        if match is None or (code and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF)):
            raise InvalidRequestError(f"grammar, line {token.line}: an escape that means no character in {token.text:.60}")
        yield chr(int(code, 16)) if code else _CONTROL_ESCAPES.get(match[4], match[4])
        position = match.end()


def _regex_char(c: str) -> str:
    return c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}"
