"""Render the test templates with the transformers library: the goldens of hotloop's chat templates.

    make_chat_template_goldens.py [MODELS]             write the goldens
    make_chat_template_goldens.py compare TEMPLATES    compare hotloop's renderings of published templates

MODELS: a folder of GGUF files; their own templates are rendered too. TEMPLATES: a folder of .jinja files, for example that of
llama.cpp's source package. Needs transformers (without torch) and gguf; compare needs hotloop's dependencies too.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from transformers.utils.chat_template_utils import render_jinja_template

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from chat_templates import BOS, CONVERSATIONS, EOS, TEMPLATES  # noqa: E402

MODEL_FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
}


def rendered(source: str, conversation: dict[str, Any]) -> str | None:
    """The text, or null where the template refuses or fails."""
    options = {"add_generation_prompt": True, "bos_token": BOS, "eos_token": EOS, **conversation}
    messages = options.pop("messages")
    try:
        texts, _ = render_jinja_template([messages], chat_template=source, **options)
    except Exception:
        return None
    text: str = texts[0]
    return text


def compare(folder: Path) -> None:
    """Print the renderings that differ, those that one of the two refuses included."""
    sys.path[:0] = [str(ROOT / "src")]
    from hotloop.errors import InvalidRequestError
    from hotloop.text.chat_template import ChatTemplate

    num_equal, num_refused = 0, 0
    paths = sorted(folder.glob("*.jinja"))
    for path in paths:
        template = ChatTemplate(path.read_text(), bos_token=BOS, eos_token=EOS)
        for key, conversation in CONVERSATIONS.items():
            expected = rendered(template.source, conversation)
            try:
                actual = template.render(**conversation)
            except InvalidRequestError as error:
                actual, refusal = None, error
            if actual == expected:
                num_equal, num_refused = num_equal + (actual is not None), num_refused + (actual is None)
            elif actual is None:
                print(f"{path.name}, {key}: hotloop refuses: {refusal}")
            else:
                print(f"{path.name}, {key}: " + ("differs" if expected is not None else "transformers refuses"))
    print(f"{len(paths)} templates: {num_equal} renderings equal, {num_refused} refused by both")


def main() -> None:
    if sys.argv[1:2] == ["compare"]:
        return compare(Path(sys.argv[2]))
    templates = dict(TEMPLATES)
    for name, file_name in MODEL_FILES.items() if len(sys.argv) > 1 else ():
        field = GGUFReader(Path(sys.argv[1]) / file_name).get_field("tokenizer.chat_template")
        assert field is not None
        templates[name] = field.contents()
    golden = {
        name: {key: rendered(source, conversation) for key, conversation in CONVERSATIONS.items()}
        for name, source in templates.items()
    }
    path = ROOT / "tests" / "golden" / "chat_templates.json"
    path.write_text(json.dumps(golden, ensure_ascii=True, indent=1) + "\n")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
