"""A jinja2 environment in which a hostile chat template runs out of its allowance before it does any harm.

jinja2's sandbox keeps a template away from Python's internals, but not from `'a' * 10**10` or nested loops.
Here, in any thread and without signals, every loop turn, call, filter and comparison is a step, every value
that an expression makes is charged, and filters and methods are those of the lists below: of any other, the
cost would have to be estimated first. Otherwise it is what chat templates are written for: trimmed blocks, loop
controls, `{% generation %}`, `tojson` without HTML escapes, `raise_exception` and `strftime_now`.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import datetime
from functools import partial, wraps
from typing import Any

from jinja2 import TemplateError, nodes, pass_context, pass_environment
from jinja2.environment import Environment
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from hotloop.text import template_limits as limits
from hotloop.text.template_limits import current_allowance

_FILTERS = (
    "abs capitalize count d default dictsort e escape first float int items last length list lower map max"
    " min reject rejectattr reverse safe select selectattr sort string title trim unique upper wordcount"
)
_STR_METHODS = (
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower"
    " isnumeric isprintable isspace istitle isupper lower lstrip partition removeprefix removesuffix rfind"
    " rindex rpartition rstrip startswith strip swapcase title upper"
)
_GUARDED_STR_METHODS: Mapping[str, Callable[..., Any]] = {
    "join": limits.join,
    "replace": limits.replace,
    "split": limits.split,
    **{name: limits.pad(name) for name in ("center", "ljust", "rjust", "zfill")},
}
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset((*_STR_METHODS.split(), *_GUARDED_STR_METHODS))),
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (list, frozenset(("copy", "count", "index"))),
    (tuple, frozenset(("count", "index"))),
)
_TEMPLATE_OBJECTS = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)
_MAX_RANGE = 100_000


class TemplateRaisedError(TemplateError):
    """A template called raise_exception."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """See the module's text. Rendering needs `current_allowance` to be set."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        # Constants are not folded: that would run expressions before there is an allowance.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[LoopControlExtension, _GenerationExtension],
        )
        self.filters = {name: _charged(FILTERS[name]) for name in _FILTERS.split()}
        self.filters |= {
            "step": _step,
            "charge": _charge,
            "center": _charged(_text_first(limits.pad("center"), width=80)),
            "format": _charged(_format),
            "indent": _charged(_text_first(limits.indent)),
            "join": _charged(_join),
            "replace": _charged(_replace),
            "tojson": _charged(limits.to_json),
        }
        self.globals = {
            "cycler": Cycler,
            "dict": dict,
            "joiner": Joiner,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        metered = _Meter().visit(template)
        metered.set_environment(self)
        assert isinstance(metered, nodes.Template)
        return metered

    def concat(self, parts: Iterable[str]) -> str:
        """Joins the output of macros, blocks and set blocks."""
        return limits.join("", parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.estimate_operator(operator, left, right)
        return _charge(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        current_allowance.get().step()
        result: Any = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, KeysView | ValuesView | ItemsView):
            result = list(result)
        return _charge(result)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return _guarded(obj, attribute, super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return _guarded(obj, argument, super().getitem(obj, argument))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        for kind, allowed in _METHODS:
            if isinstance(obj, kind):
                return attr in allowed
        return isinstance(obj, _TEMPLATE_OBJECTS)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            limits.refuse_wide_brace_format(value.__self__)
        return wrapped


def _guarded(obj: Any, attribute: Any, value: Any) -> Any:
    if isinstance(obj, str) and isinstance(attribute, str) and attribute in _GUARDED_STR_METHODS:
        return partial(_GUARDED_STR_METHODS[attribute], obj)
    return value


# --- metering ---


class _Meter(NodeTransformer):
    """Rewrites a template so that what it does passes through the `step` and `charge` filters."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        node = super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.For):
            node.iter = _through("step", node.iter)
            if node.test is not None:
                node.test = _through("step", node.test)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            step = _through("step", nodes.Const(None, lineno=node.lineno))
            node.body = [nodes.ExprStmt(step, lineno=node.lineno), *node.body]
        if isinstance(node, nodes.Compare | nodes.Test):
            return _through("step", node)
        if isinstance(node, nodes.Concat):
            parts = nodes.List(node.nodes, lineno=node.lineno)
            return _through("join", parts)
        is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        is_new_value = isinstance(node, nodes.List | nodes.Dict) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        )
        return _through("charge", node) if is_slice or is_new_value else node


def _through(filter_name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, filter_name, [], [], None, None, lineno=node.lineno)


def _step(value: Any) -> Any:
    current_allowance.get().step()
    return value


def _charge(value: Any) -> Any:
    current_allowance.get().charge(value)
    return value


def _charged(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        return _charge(function(*args, **kwargs))

    return charged


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    # With a context, so that jinja2 does not evaluate constant output while it compiles.
    return value if type(value) is str else _charge(value)


# --- filters, globals, extensions ---


def _text_first(function: Callable[..., str], **defaults: Any) -> Callable[..., str]:
    @wraps(function)
    def on_text(value: object, *args: Any, **kwargs: Any) -> str:
        return function(str(value), *args, **(kwargs if args else defaults | kwargs))

    return on_text


def _format(value: object, *args: Any, **kwargs: Any) -> str:
    limits.refuse_wide_format(str(value))
    text: str = FILTERS["format"](value, *args, **kwargs)
    return text


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    return limits.join(str(d), items)


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    return limits.replace(str(value), str(old), str(new), -1 if count is None else count)


class _Namespace(Namespace):
    def __repr__(self) -> str:
        # jinja2 shows the attributes, which may hold each other many times over.
        return "<Namespace>"


def _raise_exception(message: object) -> None:
    raise TemplateRaisedError(str(message))


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > _MAX_RANGE:
        raise limits.TemplateLimitError(f"it asks for a range of {len(numbers)} numbers")
    return numbers


def _strftime_now(format: str) -> str:
    limits.refuse_wide_time_format(format)
    return datetime.now().strftime(format)


class _GenerationExtension(Extension):
    """`{% generation %}` marks the assistant's tokens for training; for rendering it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def render_pieces(pieces: Iterator[str]) -> str:
    """The output of a template, charged while it is made."""
    allowance = current_allowance.get()
    parts, length = [], 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        allowance.charge_chars(len(piece))
        if length > allowance.value_chars:
            raise limits.TemplateLimitError("it writes too much text")
    return "".join(parts)
