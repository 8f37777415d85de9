"""GBNF is read as llama.cpp reads it, and refused with the line where it cannot be."""

import pytest

from hotloop.errors import InvalidRequestError
from hotloop.sampling.gbnf import gbnf_to_lark


@pytest.mark.parametrize(
    ("gbnf", "lark"),
    [
        ('root ::= "a"', "start: /a/\n"),
        ("root ::= [a-z_]+ # letters\n\n", "start: /[a-z\\x{5f}]/ +\n"),
        ('root ::= "" | . x{2, 3}\nx ::= [^"\\n\\]-]', 'start: "" | /(?s:.)/ L1 {2,3}\nL1: /[^\\x{22}\\x{a}\\x{5d}\\x{2d}]/\n'),
        ('root ::=\n  x |\n  ( "b"\n  | "c" )\n\nx ::= "\\x41\\u00e9\\U0001F600\\\\/"',
         "start: L1 | ( /b/ | /c/ )\nL1: /A\\x{e9}\\x{1f600}\\x{5c}\\x{2f}/\n"),
        # A rule that comes back to itself is no lexeme, nor is one that uses it; names that differ stay different.
        ('root ::= a-b a_b\na-b ::= "(" a-b? ")"\na_b ::= a-b | end\nend ::= "e"',
         "start: r1 r2\nr1: /\\x{28}/ r1 ? /\\x{29}/\nr2: r1 | L3\nL3: /e/\n"),
    ],
)  # fmt: skip
def test_translation(gbnf: str, lark: str) -> None:
    assert gbnf_to_lark(gbnf) == lark


@pytest.mark.parametrize(
    ("gbnf", "message"),
    [
        ("", "no rule 'root'"), ("x ::= [a]", "no rule 'root'"), ("Root ::= [a]", "no rule 'root'"),
        ("root ::= foo", "line 1: there is no rule 'foo'"), ("root = [a]", "line 1: cannot read '= \\[a\\]'"),
        ('\nroot ::= "a', "line 2: cannot read"), ("root ::= [a]\nroot ::= [b]", "line 2: the rule 'root' is there already"),
        ("root ::= ([a]", "'\\(' of the rule 'root' is not closed"), ("root ::= [a])", "line 1: a '\\)' too many"),
        ("root ::= []", "set of no characters"), ('root ::= "\\q"', "an escape"), ('root ::= "\\U00110000"', "an escape"),
        ('root ::= "\\ud800"', "an escape"), ("root ::= a ::= b", "'::=' within a rule"), ("[a]", "a rule begins with"),
        ("root", "a rule begins with"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(gbnf: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        gbnf_to_lark(gbnf)


def test_a_long_chain_of_rules_takes_linear_time() -> None:
    rules = [f"r{i} ::= r{i + 1} | [a]" for i in range(5000)]
    lark = gbnf_to_lark("\n".join(["root ::= r0", *rules, "r5000 ::= [b]"]))
    assert lark.count("\nL") == 5001
