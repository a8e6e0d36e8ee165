"""The form of events as a JSON Schema, for readers that are not written in Python.

Made from the classes. It stays true for files that were written before: what was added later is not
required, and what comes later is allowed.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeAlias, get_args, get_type_hints

from holdfast.observability.events.kinds import SCHEMA, Event
from holdfast.observability.events.run import OpRow, TransferRow

Schema: TypeAlias = dict[str, Any]

SCHEMA_FILE = "events.schema.json"  # beside this module, and on the pages
_WORDS = {"type": "string"}
_WHOLE = {"type": "integer"}
_NUMBER = {"$ref": "#/$defs/number"}
_FORMS: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: _WHOLE,
    float: _NUMBER,
    float | None: {"anyOf": [_NUMBER, {"type": "null"}]},
    str: _WORDS,
    str | None: {"type": ["string", "null"]},
    tuple[int, ...]: {"type": "array", "items": _WHOLE},
    tuple[str, ...]: {"type": "array", "items": _WORDS},
    tuple[float, ...]: {"type": "array", "items": _NUMBER},
    tuple[OpRow, ...]: {"type": "array", "items": {"$ref": "#/$defs/operation"}},
    tuple[TransferRow, ...]: {"type": "array", "items": {"$ref": "#/$defs/transfer"}},
    Mapping[str, str]: {"type": "object", "additionalProperties": _WORDS},
    Mapping[str, int]: {"type": "object", "additionalProperties": _WHOLE},
    Mapping[str, float]: {"type": "object", "additionalProperties": _NUMBER},
}


def json_schema() -> Schema:
    """Of one line of ``events.jsonl``."""
    kinds = sorted(get_args(Event), key=lambda kind: str(kind.__name__))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of events.jsonl of a Holdfast run",
        "version": SCHEMA,
        "type": "object",
        "required": ["event"],
        "properties": {"event": {"enum": [kind.__name__ for kind in kinds]}},
        "allOf": [
            {
                "if": {"properties": {"event": {"const": kind.__name__}}},
                "then": {"$ref": f"#/$defs/{kind.__name__}"},
            }
            for kind in kinds
        ],
        "$defs": {
            "number": {
                "description": "a text if it is no number, or infinite",
                "anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
            },
            "operation": _row(
                "operation (2F5: stage 2, forward, micro-batch 5), start, end in seconds",
                *(_WORDS, _NUMBER, _NUMBER),
            ),
            "transfer": _row(
                "source, what for, count, bytes, median seconds under way",
                *(_WORDS, _WORDS, _WHOLE, _WHOLE, _NUMBER),
            ),
            **{kind.__name__: _of(kind) for kind in kinds},
        },
    }


def _row(description: str, *forms: Schema) -> Schema:
    return {
        "description": description,
        "type": "array",
        "prefixItems": list(forms),
        "minItems": len(forms),
        "maxItems": len(forms),
    }


def _of(kind: type[Any]) -> Schema:
    hints = get_type_hints(kind)
    required = [
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    ]
    form: Schema = {"properties": {each.name: _FORMS[hints[each.name]] for each in fields(kind)}}
    head = (kind.__doc__ or "").split("\n\n")[0].strip()
    if head and not head.startswith(f"{kind.__name__}("):
        form["description"] = " ".join(head.split())
    return {**form, "required": ["event", *required]}
