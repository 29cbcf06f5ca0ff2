"""Reads schemas with valid and invalid documents in the format of MaskBench, one file per schema:
{"schema": {…}, "tests": [{"valid": true, "data": …}, …]}."""

import hashlib
import json
import random


def read(folder, share="0-f", most=None):
    """Returns {file name: content} of at most `most` files, drawn with seed 1. A file is eligible if the SHA-256 of
    its name begins with a digit of the share: 0-7 is one half of all files. Files that are not JSON, or have no schema
    or no tests, are left out."""
    first, last = share.split("-")
    names = sorted(path.name for path in folder.glob("*.json")
                   if first <= hashlib.sha256(path.name.encode()).hexdigest()[0] <= last)
    found = {}
    for name in random.Random(1).sample(names, len(names)):
        try:
            content = json.loads((folder / name).read_text(encoding="utf-8"))
        except ValueError:
            continue
        if is_usable(content):
            found[name] = content
        if len(found) == most:
            break
    return found


def is_usable(content):
    tests = content.get("tests") if isinstance(content, dict) and "schema" in content else None
    return isinstance(tests, list) and tests != [] and all(
        isinstance(test, dict) and isinstance(test.get("valid"), bool) and "data" in test for test in tests)


def lines(contents):
    """Returns the lines for `bench masks`. Documents are written as Python writes them, with a space after each comma
    and colon."""
    def text(value):
        return json.dumps(value, ensure_ascii=False)
    return "".join(text({"schema": text(content["schema"]),
                         "tests": [{"valid": test["valid"], "text": text(test["data"])} for test in content["tests"]]})
                   + "\n" for content in contents)


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0


def figures(results):
    """Summarizes the results of `bench masks` over all files. A file passes if all its valid documents are accepted and
    all invalid ones are rejected."""
    compiled = [result["compile_us"] for result in results if "refused" not in result]
    masks = [time for result in results for time in result["masks_us"]]
    def count(is_wrong):
        return sum(any(is_wrong(*wrong) for wrong in result["wrong"]) for result in results)
    return {
        "files": len(results),
        "passed": sum("refused" not in result and not result["wrong"] for result in results),
        "refused": sum("refused" in result for result in results),
        "accepts an invalid document": count(lambda test, valid, accepted: accepted and not valid),
        "refuses a valid document": count(lambda test, valid, accepted: valid and not accepted),
        "compile mean us": round(sum(compiled) / max(1, len(compiled))),
        "compile p50": round(quantile(compiled, 0.5)),
        "compile p99": round(quantile(compiled, 0.99)),
        "masks": len(masks),
        "mask mean us": round(sum(masks) / max(1, len(masks)), 1),
        "mask p50": round(quantile(masks, 0.5), 1),
        "mask p99": round(quantile(masks, 0.99), 1),
        "mask max": round(max(masks, default=0), 1),
    }
