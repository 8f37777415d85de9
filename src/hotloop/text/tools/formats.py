"""The tool formats there are, and which of them a model's chat template asks for."""

from __future__ import annotations

from hotloop.errors import InvalidRequestError
from hotloop.text.tools.format import ToolFormat
from hotloop.text.tools.generic import Generic
from hotloop.text.tools.hermes import Hermes
from hotloop.text.tools.llama3_json import Llama3Json

FORMATS: tuple[ToolFormat, ...] = (Hermes(), Llama3Json(), Generic())  # the first that fits; the last fits always


def format_for(template_source: str, name: str | None = None) -> ToolFormat:
    """name: of a format to use whatever the template looks like. Raises InvalidRequestError if there is none of that name."""
    if name is None:
        return next(format for format in FORMATS if format.fits(template_source))
    for format in FORMATS:
        if format.name == name:
            return format
    raise InvalidRequestError(f"tool_format is {name!r:.60}; it must be one of {', '.join(f.name for f in FORMATS)}")
