"""English sentences that keep their template and its parameters.

A `Message` is a string with its English text, so code that compares, stores or logs text does not need a special case.
The entry points (pages, REST, command line) use the template and the parameters to translate the message and to redact
names of pods outside the user's scope.

A parameter is a text, a number, another message, or `joined` items. The placeholders `pod` and `pods` are for pod keys
(`namespace/name`). A sentence that quotes another program's text about such a pod ends in `: {detail}`, so that the
quoted text can be redacted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

HIDDEN = "(a pod of another namespace)"
BY_KUBELET = "kubelet:"  # key prefix of pods that are known only from the kubelet's assignments
MOST_NAMED = 5
_STORED = '{"template":'
_ABOUT = ": {detail}"
_PODS = ("pod", "pods")
_DETAIL, _EARLIER_DETAIL = "detail", "said"  # messages that an earlier version stored have the second name

Value = str | int | float  # a Message is a str
Params = Mapping[str, Any] | tuple[Any, ...]
IsVisible = Callable[[str], bool]


class Parts(msgspec.Struct, frozen=True):
    """JSON form of a message.

    `params` maps each placeholder of the template to its value. If `template` is a separator, `params` is the list of
    the items that it joins.
    """

    template: str
    params: dict[str, str | int | float | Parts] | list[str | int | float | Parts]


class Message(str):
    """A sentence: the template with its parameters inserted. Without parameters, the template is the sentence."""

    __slots__ = ("params", "template")
    template: str
    params: Params

    def __new__(cls, template: str, /, **params: Value) -> Message:
        made = str.__new__(cls, template.format_map(params) if params else template)
        made.template = template
        made.params = params
        return made

    def __getnewargs__(self) -> tuple[str]:  # copy and pickle call this and then restore the slots
        return (str(self),)

    def redacted(self, is_visible: IsVisible) -> Message:
        """Replace the keys of pods that the reader may not see.

        Verbatim text of another program about such a pod is also removed.
        """
        if isinstance(self.params, tuple):
            return joined(self.template, [_redact_value("", value, is_visible) for value in self.params])
        params = {name: _redact_value(name, value, is_visible) for name, value in self.params.items()}
        if params == self.params:
            return self
        template = self.template
        if template.endswith(_ABOUT) and any(params[name] != self.params[name] for name in _PODS if name in params):
            template = template.removesuffix(_ABOUT)
            del params[_DETAIL]
        return Message(template, **params)


def joined(separator: str, items: Iterable[Value]) -> Message:
    """Join items with a separator, which is also translated."""
    values = tuple(items)
    if len(values) == 1 and isinstance(values[0], Message):
        return values[0]
    made = str.__new__(Message, separator.join([value if isinstance(value, str) else str(value) for value in values]))
    made.template = separator
    made.params = values
    return made


def as_message(text: str) -> Message:
    """Return a text as a message; plain text becomes a message without parameters."""
    return text if isinstance(text, Message) else Message(text)


def verbatim(text: str) -> Message:
    """Return a text from a user or another program as a message, which is neither translated nor redacted."""
    if isinstance(text, Message):
        return text
    return Message("{text}", text=text) if text else Message("")


def shortened(text: str, most: int) -> Message:
    """Return a text as a message of at most `most` characters; a truncated message loses its parameters."""
    return as_message(text if len(text) <= most else text[:most])


def replace_pod(message: Message, pod: str) -> Message:
    """Return the same message about a different pod."""
    assert isinstance(message.params, dict)
    return Message(message.template, **{**message.params, "pod": pod})


def format_pods(pods: Iterable[Value], most: int = MOST_NAMED, *, count: int = 0) -> Message:
    """Format the first `most` pods and the number of further pods; `count` is the total, if `pods` is only a part."""
    keys = list(pods)
    shown = joined(", ", keys[:most])
    others = max(count, len(keys)) - len(keys[:most])
    return Message("{pods} and {n} more", pods=shown, n=others) if others else shown


def namespace_of(key: str) -> str:
    """Return the namespace of `namespace/name`."""
    return key.partition("/")[0]


def to_column(text: str) -> str:
    """Return a text in the form for a database column: a message with parameters as JSON, any other text unchanged."""
    if isinstance(text, Message) and text.params:
        return msgspec.json.encode(_parts(text)).decode()
    return _escape(text) if text.startswith(_STORED) else str(text)


def from_column(text: str) -> str:
    """Return the message stored in a database column; text without parameters is unchanged."""
    if not text.startswith(_STORED):
        return Message(text) if text else text
    try:
        return _message(_decoder.decode(text))
    except (
        msgspec.DecodeError,
        LookupError,
        AttributeError,
        ValueError,
    ):  # plain text, stored by an earlier version, that happens to begin like an encoded message
        return Message(text)


def as_text(value: Any) -> str:
    """Encode a message as its English text (an `enc_hook` of msgspec)."""
    if isinstance(value, Message):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def as_parts(value: Any) -> Parts | str:
    """Encode a message with its parameters (an `enc_hook` of msgspec)."""
    if isinstance(value, Message):
        return _parts(value) if value.params else str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def from_parts(kind: type, value: Any) -> Any:
    """Decode a message from its JSON form, or from plain text (a `dec_hook` of msgspec)."""
    assert kind is Message, kind
    return Message(value) if isinstance(value, str) else _message(msgspec.convert(value, Parts))


def _parts(message: Message) -> Parts:
    if isinstance(message.params, tuple):
        return Parts(message.template, [_to_value(value) for value in message.params])
    return Parts(message.template, {name: _to_value(value) for name, value in message.params.items()})


def _to_value(value: Any) -> str | int | float | Parts:
    if isinstance(value, Message):
        return _parts(value)
    return value if type(value) in (str, int, float) else str(value)


def _message(parts: Parts) -> Message:
    if isinstance(parts.params, list):
        return joined(parts.template, [_value(value) for value in parts.params])
    params = {name: _value(value) for name, value in parts.params.items()}
    if _EARLIER_DETAIL not in params:
        return Message(parts.template, **params)
    params[_DETAIL] = params.pop(_EARLIER_DETAIL)
    return Message(parts.template.replace(f"{{{_EARLIER_DETAIL}}}", f"{{{_DETAIL}}}"), **params)


def _value(value: str | int | float | Parts) -> Value:
    return _message(value) if isinstance(value, Parts) else value


def _escape(text: str) -> str:
    """Wrap a plain text that could be mistaken for a stored message, so that it is read back unchanged."""
    return msgspec.json.encode(Parts("{text}", {"text": str(text)})).decode()


def _redact_value(name: str, value: Any, is_visible: IsVisible) -> Any:
    if isinstance(value, Message):
        return _redact_pods(value, is_visible) if name in _PODS else value.redacted(is_visible)
    return HIDDEN if name in _PODS and not is_visible(namespace_of(value)) else value


def _redact_pods(value: Message, is_visible: IsVisible) -> Message:
    """Redact the pod keys in a list of pods, or in a result of `format_pods` that contains such a list."""
    if isinstance(value.params, tuple):
        return joined(value.template, [_redact_value("pods", item, is_visible) for item in value.params])
    return value.redacted(is_visible)


_decoder = msgspec.json.Decoder(Parts)
