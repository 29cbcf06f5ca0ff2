#!/usr/bin/env python3
"""Writes json_schema.json: random schemas of the keywords that are built, and random documents, each judged by the
package jsonschema (draft 2020-12). Not part of the test suite: needs jsonschema,
rfc3339-validator and rfc3986-validator.

    python tests/reference/make_json_schema.py
"""

import json
import math
import pathlib
import random

from jsonschema import Draft202012Validator

HERE = pathlib.Path(__file__).resolve().parent
SCHEMAS, DOCUMENTS = 500, 8
NAMES = ["a", "b", "ab", "é", 'q"', "x/y"]
STRINGS = ["", "a", "ab", "abc", "é", 'q"', "2024-02-29", "2023-02-29", "12:30:00Z", "00", "7", "a\nb",
           "http://a.b:8/c?d#e", "urn:a%20b", "http://[::1]/"]
PATTERNS = ["^[a-c]+$", "b", "^a|b$", "^.{2}$", "[^a]", "^(a|ab)?$", r"^\d+$", r"\n|\""]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email", "uri"]
NUMBERS = [0, 1, -1, 2, 3, 9, 10, 11, 99, 100, 101, -10, -99, 1.5, -0.5, 9.99, 10.25]


def schema(draw, depth):
    kind = draw.random()
    if depth > 0 and kind < 0.12:
        return {"anyOf": [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
    if depth > 0 and kind < 0.2:
        return {"allOf": [schema(draw, depth - 1), schema(draw, depth - 1)]}
    if depth > 0 and kind < 0.26:
        return {"oneOf": [schema(draw, depth - 1) for _ in range(draw.randint(2, 3))]}
    if depth > 0 and kind < 0.29:
        return {"not": schema(draw, depth - 1)}
    if depth > 0 and kind < 0.33:
        return {keyword: schema(draw, depth - 1) for keyword in ("if", "then", "else") if keyword == "if" or draw.random() < 0.8}
    if kind < 0.37:
        return {"$ref": draw.choice(["#/$defs/one", "#/$defs/tree"])}
    if kind < 0.42:
        return draw.choice([True, True, False, {}])
    if kind < 0.48:
        return {"enum": draw.sample([None, True, 0, 1.0, "a", "ab", [1, "a"], {"a": 1, "b": []}], draw.randint(1, 4))}
    made = {}
    types = draw.sample(["null", "boolean", "integer", "number", "string", "array", "object"], draw.choice([1, 1, 1, 2, 3]))
    if draw.random() < 0.85:
        made["type"] = types[0] if len(types) == 1 else types
    may = set(types) if "type" in made else {"string", "array", "object"}
    if "integer" in may or "number" in may:
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if draw.random() < 0.3:
                made[keyword] = draw.choice(NUMBERS)
    if "string" in may:
        if draw.random() < 0.4:
            made |= {"pattern": draw.choice(PATTERNS)} if draw.random() < 0.7 else {"format": draw.choice(FORMATS)}
        if draw.random() < 0.5:
            made |= {keyword: draw.randint(0, 3) for keyword in ("minLength", "maxLength") if draw.random() < 0.4}
    if "array" in may and depth > 0:
        if draw.random() < 0.4:
            made["prefixItems"] = [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]
        if draw.random() < 0.6:
            made["items"] = schema(draw, depth - 1)
        made |= {keyword: draw.randint(0, 3) for keyword in ("minItems", "maxItems") if draw.random() < 0.3}
    if "object" in may and depth > 0:
        made["properties"] = {name: schema(draw, depth - 1) for name in draw.sample(NAMES, draw.randint(0, 3))}
        made["required"] = draw.sample(NAMES, draw.choice([0, 0, 1, 2]))
        if draw.random() < 0.3:
            made["patternProperties"] = {pattern: schema(draw, depth - 1)
                                         for pattern in draw.sample(PATTERNS, draw.choice([1, 1, 2]))}
        if draw.random() < 0.2:
            made["dependentRequired"] = {draw.choice(NAMES): draw.sample(NAMES, 1)}
        elif draw.random() < 0.2:
            made["dependentSchemas"] = {draw.choice(NAMES): {"properties": {draw.choice(NAMES): schema(draw, 0)}}}
        if draw.random() < 0.15:
            made["oneOf"] = [{"required": [name]} for name in draw.sample(NAMES, 2)]
        made |= {keyword: draw.randint(0, 4) for keyword in ("minProperties", "maxProperties") if draw.random() < 0.2}
        if draw.random() < 0.5:
            made["additionalProperties"] = draw.choice([False, schema(draw, depth - 1)])
    return made


def document(draw, depth):
    kind = draw.random()
    if depth == 0 or kind < 0.5:
        return draw.choice([None, True, False, *NUMBERS[:12], *draw.sample(NUMBERS, 3), *draw.sample(STRINGS, 6)])
    if kind < 0.7:
        return [document(draw, depth - 1) for _ in range(draw.randint(0, 4))]
    return {name: document(draw, depth - 1) for name in draw.sample(NAMES, draw.randint(0, 4))}


def near(draw, schema, root, depth=4):
    """A document that may be valid."""
    if depth == 0 or not isinstance(schema, dict) or draw.random() < 0.08:
        return document(draw, 1)
    if "$ref" in schema:
        return near(draw, root["$defs"][schema["$ref"].split("/")[-1]], root, depth - 1)
    for keyword in ("anyOf", "allOf", "oneOf"):
        if keyword in schema and "properties" not in schema:
            return near(draw, draw.choice(schema[keyword]), root, depth)
    for keyword in draw.sample(["if", "then", "else", "not"], 4):
        if keyword in schema:
            return near(draw, schema[keyword], root, depth)
    if "enum" in schema:
        return draw.choice(schema["enum"])
    kind = schema.get("type", draw.choice(["string", "array", "object"]))
    kind = draw.choice(kind) if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        around = [schema[k] + d for k in schema if "imum" in k for d in (-1, 0, 1)] or NUMBERS
        return draw.choice(around)
    if kind == "array":
        prefix = schema.get("prefixItems", [])
        return [near(draw, prefix[i] if i < len(prefix) else schema.get("items", {}), root, depth - 1)
                for i in range(draw.randint(0, 4))]
    if kind == "object":
        names = {*schema.get("required", []), *(n for n in schema.get("properties", {}) if draw.random() < 0.6),
                 *draw.sample(NAMES, draw.choice([0, 0, 1]))}
        more = schema.get("additionalProperties", {})
        return {name: near(draw, schema.get("properties", {}).get(name, more), root, depth - 1) for name in sorted(names)}
    return {"null": None, "boolean": True}.get(kind, draw.choice(STRINGS))


def orders(document):
    """In how many orders its members can be written: the check tries them all."""
    parts = document.values() if isinstance(document, dict) else document if isinstance(document, list) else []
    return math.prod(map(orders, parts)) * (math.factorial(len(document)) if isinstance(document, dict) else 1)


def few_orders(draw, root):
    while orders(made := near(draw, root, root)) > 500:
        pass
    return made


def main():
    draw = random.Random(1)
    cases = []
    counts = [0, 0]
    while len(cases) < SCHEMAS:
        root = schema(draw, 3)
        if not isinstance(root, dict) or len(json.dumps(root)) > 500:
            continue
        root["$defs"] = {"one": schema(draw, 1), "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}
        if '"$ref"' in json.dumps(root["$defs"]["one"]):
            continue
        judge = Draft202012Validator(root, format_checker=Draft202012Validator.FORMAT_CHECKER)
        documents = [[d, judge.is_valid(d)] for d in (few_orders(draw, root) for _ in range(DOCUMENTS))]
        if '#/$defs/' not in json.dumps({k: v for k, v in root.items() if k != "$defs"}):
            del root["$defs"]
        for _, valid in documents:
            counts[valid] += 1
        cases.append({"schema": root, "documents": documents})
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / "json_schema.json").write_text(f'{{"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{counts[1]} valid and {counts[0]} invalid documents")


if __name__ == "__main__":
    main()
