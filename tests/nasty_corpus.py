"""2,000 strings that tokenizers get wrong, the same on every machine and Python version."""

from random import Random

NUM_STRINGS = 2000

# fmt: off
_WORDS = (
    "the", "The", "THE", "hello", "world", "naïve", "café", "cafe\u0301", "Zürich", "Đorđe",
    "ďábel", "Straße", "ǆ", "ﬁnance", "Ω", "İstanbul", "ıI", "don't", "I'm", "they've", "WE'LL",
    "o'clock", "'tis", "rock'n'roll", "you’re", "e.g.", "U.S.A.", "foo_bar", "camelCase",
    "HTTPServer", "x86_64", "utf-8", "http://a.b/c?d=e&f#g", "me@host.org", "C++", "#include",
    "f(x)", "a[i]", "{}", "=>", "!==", "...", "…", "--", "—", "$9.99", "50%",
)
_NUMBERS = (
    "0", "7", "42", "007", "123", "1234", "12345678901234567890", "3.14159", "1,000,000", "-1e-10",
    "0x1F", "١٢٣", "४५६", "Ⅷ", "½", "²", "１２３", "1st", "2024-02-29T12:00:00Z", "٪", "〇一二",
)
_SCRIPTS = (
    "你好，世界", "漢字かな交じり文", "ｶﾀｶﾅ", "한국어", "\u1112\u1161\u11ab", "Привет, мир", "שלום עולם",
    "مرحبا بالعالم", "\u0928\u092e\u0938\u094d\u0924\u0947", "สวัสดีครับ", "ქართული", "አማርኛ",
    "ελληνικά", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𠜎𠜱", "\u1ea0\u0308",
    "z\u0338\u0348\u033ea\u0336l\u0337g\u0335o\u0336", "\u202eRTL\u202c", "\u200eLRM\u200f", "ﷺ",
    "ಠ_ಠ", "བོད", "ᚠᛇᚻ",
)
_EMOJI = (
    "😀", "👍🏽", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f3\ufe0f\u200d\U0001f308", "🇨🇿🇯🇵", "1\ufe0f\u20e3", "\u263a\ufe0f", "☺",
    "\U0001f937\U0001f3ff\u200d\u2640\ufe0f", "\U0001f9d1\u200d\U0001f680", "🫠", "🫱🏻",
    "\u2764\ufe0f\u200d\U0001f525",
)
_BLANKS = (
    " ", "  ", "   ", "        ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n", "\n ",
    "\t \n", "\xa0", "\u2003", "\u3000", "\u200b", "\ufeff", "\u2028", "\x85", "\x0b", "\x0c",
    "\u1680", "\u180e", "    \n    ",
)
_CONTROLS = (
    "\x00", "\x01", "\x07", "\x08", "\x1b[0m", "\x1f", "\x7f", "\x80", "\x9f", "�", "\ufffe",
    "\uffff", "\U0010ffff", "\U000e0001", "\xad", "\u2060", "\ue000", "\U000f0000",
)
_COMBINING = (
    "\u0301", "\u0308", "\u0323", "\u20dd", "\u0489", "\u0345", "\u3099", "\u05b0", "\u094d",
    "\ufe0f",
)
_PUNCTUATION = (
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¿¡«»“”‘’、。「」§¶†‡•‰", "▁", "▁▁", "Ġ", "Ċ", "##", "</w>",
)
_CODE = (
    "def f(x: int) -> str:\n    return f\"{x!r}\"\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] ^= 0xFF;\n}\n", "SELECT * FROM t WHERE a='b';",
    "<div class=\"a\">\n  <b>x</b>\n</div>", "{\"k\": [1, 2, null], \"é\": \"\\u00e9\"}",
    "\\begin{align} x^2 &= \\frac{1}{2} \\end{align}", "$ ls -la | grep '^d' > /dev/null 2>&1",
    "<table><tr><td>", "if a:\n        b()\n\n\n    else:\n\tpass", "R\"(raw)\"", "λx.x",
    "#!/bin/sh\r\nexit 0\r\n",
)
CONTROL_TEXTS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<s>", "</s>",
    "<unk>", "<pad>", "<0x0A>", "<0xFF>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
    "<unused7>", "<repo_name>", "<file_sep>", "[multimodal]",
)
_LOOK_ALIKES = (
    "<|im_end|", "<|im_end |>", "< |im_end|>", "<|IM_END|>", "<|im_end|>>", "<<|im_end|>",
    "<|im_<|im_end|>end|>", "<｜im_end｜>", "<|endoftext", "<bos", "bos>", "< s>", "<|eot_id",
    "<0x0a>", "<0x1>", "[INST]", "<<SYS>>",
)
# fmt: on
_KINDS = (
    _WORDS,
    _NUMBERS,
    _SCRIPTS,
    _EMOJI,
    _BLANKS,
    _CONTROLS,
    _COMBINING,
    _PUNCTUATION,
    _CODE,
    CONTROL_TEXTS,
    _LOOK_ALIKES,
)


def nasty_corpus() -> list[str]:
    """All single pieces, control texts in every neighbourhood, runs, then seeded mixtures."""
    random = Random(20240229)
    texts = ["", *(piece for kind in _KINDS for piece in kind)]
    for control in CONTROL_TEXTS:
        for before, after in (
            ("", "G"),
            ("", " G"),
            ("x", ""),
            ("x ", "\nuser"),
            ("", control),
            ("\n", "\n\n  é1"),
        ):
            texts.append(before + control + after)
    for run in (
        "a",
        " ",
        "\n",
        "\t",
        "é",
        "1",
        "😀",
        "'",
        "▁",
        "\u0301",
        "漢",
        "A",
        "\x00",
        "s ",
        "ab",
        "\r\n",
    ):
        texts += [run * count for count in (2, 3, 5, 16, 31, 33, 100)]
    while len(texts) < NUM_STRINGS:
        texts.append(_mixture(random))
    return texts


def _mixture(random: Random) -> str:
    """One to twelve pieces, mostly apart by blanks, sometimes with single characters cut out or thrown in."""
    parts = []
    for _ in range(1 + random.randrange(12)):
        kind = _KINDS[random.randrange(len(_KINDS))]
        parts.append(kind[random.randrange(len(kind))])
        if random.randrange(3):
            parts.append(" " if random.randrange(4) else _BLANKS[random.randrange(len(_BLANKS))])
    if random.randrange(4) == 0:
        parts.insert(random.randrange(len(parts)), chr(_scalar_value(random)))
    text = "".join(parts)
    if random.randrange(8) == 0:
        cut = random.randrange(len(text))
        text = text[:cut] + text[cut + 1 :]
    return text


def _scalar_value(random: Random) -> int:
    """A code point from the whole range without the surrogates, small ones more often."""
    code = random.randrange(1 << (7 + random.randrange(14)))
    return code if code < 0xD800 else 0xE000 + (code - 0xD800) % (0x110000 - 0xE000)
