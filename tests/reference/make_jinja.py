#!/usr/bin/env python3
"""Writes jinja.json: small templates, by subject, and what Python's jinja2 makes of them, set up as transformers does.

    python tests/reference/make_jinja.py    # needs jinja2
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "differential"))
from templates import NOW, environment

DATA = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi <b>\n"},
                 {"role": "assistant", "content": [{"type": "text", "text": "Hé"}, {"type": "image"}]}],
    "word": "naïve", "lines": "a\nb\n\nc", "tag": "</think>",
    "n": 7, "half": 0.5, "big": 1e16, "yes": True, "nothing": None,
    "numbers": [3, 1, 2], "empty": [], "d": {"b": 1, "A": [True, None], "items": "own"},
}
SUBJECTS = {
    "white space": [
        "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n",
        "  {{ n }}\n  {{ n }}\n",
        "a\n\t {%+ if yes %}b{% endif +%}\nc",
        "a \n {#- b -#}\n c\n\t{#+ d #}e\n  {# f #}\n g {#- h #} i {# j -#} k",
        "a \n {%- if yes -%} \n b \n{%- endif %} c",
        "x {% if yes %} y {% endif %}\n z",
        "{# gone #}\na\n  {# gone -#}  \n b{#- c #}",
        "a  {{- n -}}  b",
        "{% if yes %}\n\n{% endif %}\n\n",
        "\n",
        "a\n\n",
        "a\r\nb\rc",
        "{{ '%}' }}{{ \"}}\" }}{{ {'a': {'b': 1}}['a']['b'] }}",
        "  {%- set x = 1 %}  x",
        "1{% set x = 1 %}\n  {% set y = 2 %}\n 2",
    ],
    "precedence": [
        "{{ 1 + 2 ~ 3 * 4 }}",
        "{{ 'a' ~ n + 1 ~ 'b' }}",
        "{{ 'a' ~ 'b' | upper }}",
        "{{ -n | string | length }}",
        "{{ -3 | abs }}",
        "{{ not yes or yes }}",
        "{{ not n == 7 }}",
        "{{ 1 + 1 == 2 and 2 < 3 }}",
        "{{ 1 < n < 10 < 9 }}",
        "{{ 3 < 1 < 5 }} {{ 1 < 9 < n }} {{ 5 > 1 < n }}",
        "{{ 3 > 2 > 1 != 2 }}",
        "{{ 'a' if nothing else 'b' if yes else 'c' }}",
        "{{ 1 if nothing }}|",
        "{{ (1, 2) + (3,) }}",
        "{{ 2 * 3 % 4 - 1 }}",
        "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 7.5 // 2 }}",
        "{{ 'b' in 'abc' and 'x' not in d }}",
        "{{ n is not none and n is number }}",
        "{{ 'a' 'b' }}",
        "{{ messages[0].role | upper ~ '!' }}",
        "{{ n is divisibleby 7 }}",
        "{{ [1, 2,] }} {{ {'a': 1,} }} {{ () }}",
        "{{ yes and 'x' or 'y' }}",
        "{{ nothing or empty or 'z' }}",
    ],
    "slices": [
        "{{ numbers[::-1] }}",
        "{{ numbers[1:] }} {{ numbers[:-1] }} {{ numbers[-2:] }}",
        "{{ word[::-1] }}",
        "{{ word[1:3] }} {{ word[-2] }} {{ word[2] }}",
        "{{ numbers[5:] }}{{ numbers[:-9] }}",
        "{{ numbers[2:0:-1] }} {{ numbers[-1::-2] }} {{ numbers[:0:-1] }}",
        "{{ word[::2] }} {{ word[3::-2] }} {{ word[9::-1] }}",
        "{{ numbers[-1] }}{{ numbers[3] }}|",
        "{{ word | length }} {{ word[7] is defined }}",
        "{{ (1, 2, 3)[:2] }}",
        "{{ numbers[9:0:-9223372036854775807] }}",
        "{{ messages[1:][0]['role'] }}",
        "{{ messages.0.role }}",
    ],
    "loops": [
        ("{% for x in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
         "{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}"),
        "{% for x in numbers %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
        "{% for x in numbers if x > 1 %}{{ x }}{{ loop.last }}{% else %}none{% endfor %}",
        "{% for x in empty %}a{% else %}b{% endfor %}",
        "{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}c{% endfor %}",
        "{% for x in numbers %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for c in word %}{{ c }}.{% endfor %}",
        "{% for x in numbers %}{% for y in 'ab' %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
        "{% for x in range(5) %}{{ x }}{% endfor %}{{ range(1, 9, 3) | list }}{{ range(3, 0, -1) | list }}",
        "{% for x in nothing_at_all %}a{% else %}b{% endfor %}",
        "{% for x in d %}{{ x }}{% endfor %}",
        "{% for (a, b) in [(1, 2)] %}{{ a + b }}{% endfor %}",
        "{% for m in messages if m.role != 'system' %}{{ loop.first }}{{ m.role }}{% endfor %}",
        "{% for x in nothing %}{% endfor %}",
        "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
        "{% break %}",
    ],
    "scope": [
        "{% set x = 1 %}{% for i in numbers %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
        "{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
        "{% set _ = 1 %}{% set __a_1 = 2 %}{% for _x in [3] %}{{ _ }}{{ __a_1 }}{{ _x }}{% endfor %}{{ _missing }}",
        "{% set Z9_ = 'z' %}{{ Z9_ }}{{ {'_k': 4}._k }}",
        ("{% set ns = namespace(x=1, y='a') %}{% for i in numbers %}{% set ns.x = ns.x + i %}{% endfor %}"
         "{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}"),
        "{% for i in numbers %}{% if loop.first %}{% set x = i %}{% endif %}{{ x }}|{% endfor %}",
        "{% set x %}a{{ n }}{% set y = 1 %}{% endset %}{{ x }}{{ y }}|",
        "{% set x | upper | trim %} ab {% endset %}{{ x }}",
        "{% set a, b = 1, 'z' %}{{ b }}{{ a }}",
        "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}|",
        "{% filter upper %}a{{ word }}{% endfilter %}",
        "{% for x in numbers %}{% endfor %}{{ x }}{{ loop }}|",
        "{% set x.y = 1 %}",
        "{% set ns = namespace() %}{% set ns.a = [ns.a] %}{{ ns.a }}",
    ],
    "macros": [
        "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(1, a=2) }}",
        "{{ 'a' | default('b', default_value='c') }}",
        "{{ (1] }}",
        "{{ [1) }}",
        "{{ {'a': (1} }}",
        "{{ '\\x4' }}",
        "{{ '\\u004' }}",
        "{{ '\\x4a\\u004a' }}",
        ("{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, c='y') }} "
         "{{ f(b=3, a=4) }}"),
        "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "{% macro f() %} a {% endmacro %}[{{ f() | trim }}]",
        "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 5 %}{% endmacro %}{% set x = 2 %}{{ f() }}{{ x }}",
        "{% macro f(a) %}{{ a }}|{% endmacro %}{{ f() }}",
        "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
        "{% macro f(a) %}{% endmacro %}{{ f(z=2) }}",
        "{% macro f(x) -%} {{ x }} {%- endmacro %}{% for i in numbers %}{{ f(i) }}{% endfor %}",
        "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f(zzz) }}",
    ],
    "texts": [
        "{{ ['\x1f\x7f\xa0\xad'] }} {{ ['\u0605\u061c\u1680\u180e'] }} {{ ['\u2000\u200f\u2028\u202f\u205f\u206f\u3000'] }}",
        "{{ ['\uf8ff\ufeff\ufffb'] }} {{ ['\x20\x7e\xa1\xac\xae\u0606\u2010\u2030\u3001\uf900'] }}",
        ("{{ 'a</think>b</think>c'.split(tag) }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} "
         "{{ ' a  b c '.split(none, 1) }}"),
        "[{{ '\\u2003 x\\n'.strip() }}] {{ 'xxaxbx'.strip('x') }} {{ 'abcb'.rstrip('bc') }} {{ 'aab'.lstrip('a') }}",
        "{{ word.upper() }} {{ 'ÀB' | lower }} {{ 'hello wORLD' | title }} {{ 'hE' | capitalize }}",
        ("{{ 'aXbXc'.replace('X', '-') }} {{ 'aXbXc'.replace('X', '-', 1) }} {{ 'ab'.replace('', '.') }} "
         "{{ 'a1' | replace(1, 2) }}"),
        "{{ word.startswith('na') }} {{ word.endswith(('x', 've')) }}",
        "{{ 'a\\r\\nb\\r\\n' | indent(2) }}|{{ 'a\\r\\nb'.splitlines() }}",
        "{{ lines | indent }}\n{{ lines | indent(2, true) }}\n{{ lines | indent(width='> ', blank=true) }}",
        "{{ '{} {}'.format(n, word) }} {{ '{x}{{}}'.format(x=1) }}",
        "{{ numbers | join(', ') }} {{ ', '.join(['a', 'b']) }} {{ messages | join('|', attribute='role') }}",
        "{{ 'ab' * 2 }} {{ [1] * 2 }}",
        "{{ lines.splitlines() }}",
        "{{ '\\t\\x41\\u00e9\\'\\\\ \\q' }}",
        "{{ word | reverse }} {{ word | first }} {{ word | last }} {{ word | list }}",
        "{{ ('<' | safe) + '<&' }} {{ '<' | safe ~ '<' }} {{ '<' | e }}",
        "{{ '&<>\"\\'' | e }} {{ '\\ud7ff\\ue000' }}",
        "{{ ('<' | e) + '&' }} {{ '&' + ('<' | e) }} {{ '<' | e | e }} {{ ('<' | e) ~ '<' }}",
        "{{ '<&' | safe | e }} {{ ('<' | safe) + ('&' | e) + '>' }}",
        "{{ 'a' + 1 }}",
        "{{ ' a ' | trim }}{{ n | trim }}{{ 'xa' | trim('x') }}",
    ],
    "lists and dicts": [
        "{{ [1] < [1] }} {{ [1] < [1, 0] }} {{ [1, 0] < [1] }} {{ [1] <= [1] }} {{ (1, 2) < (1, 3) }}",
        "{{ (1,) }} {{ () }} {{ (1, 2) }} {{ [(1,)] }}",
        "{{ 'abc'[::0] }}",
        "{{ [1, 2][::0] }}",
        "{{ numbers | select('lessthan', 2) | list }} {{ numbers | select('lt', 2) | list }}",
        "{{ numbers | select('greaterthan', 2) | list }} {{ numbers | select('gt', 2) | list }}",
        "{{ numbers | select('equalto', 2) | list }} {{ numbers | select('eq', 2) | list }}",
        "{{ numbers | select('le', 2) | list }} {{ numbers | select('ge', 2) | list }} {{ numbers | reject('ne', 2) | list }}",
        "{{ 1 is eq 1.0 }} {{ nothing is sameas nothing }} {{ nothing is sameas false }}",
        "{{ 1 is sameas 1.0 }} {{ 1 is sameas true }} {{ 0 is sameas false }}",
        "{{ 'abc'.replace('', '-', 2) }} {{ 'abc'.replace('', '-', 0) }} {{ 'abc'.replace('', '-') }} {{ 'aaa'.replace('a', 'b', 2) }}",
        "{{ 'a-b(c[d{e<f g' | title }}",
        "{{ numbers | count }} {{ numbers | length }} {{ nope | d('x') }} {{ nope | default('x') }}",
        "{{ d }} {{ numbers }} {{ d['items'] }} {{ d.b }} {{ d.get('x') }} {{ d.get('x', 4) }} {{ d.nope }}|",
        "{{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }} {{ d | items | list }}",
        "{{ d | dictsort }} {{ {'b': 2, 'a': 3} | dictsort(by='value') }}",
        ("{{ numbers | sort }} {{ numbers | sort(reverse=true) }} {{ ['b', 'A'] | sort }} "
         "{{ messages | sort(attribute='role') | map(attribute='role') | list }}"),
        "{{ ['b', 'A', 'a', 'B'] | sort }} {{ ['b', 'A', 'a', 'B'] | sort(reverse=true) }}",
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }} "
         "{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='role') | join }} "
         "{{ [0, 1, none, 'a'] | select | list }} {{ numbers | reject('odd') | list }}"),
        "{{ numbers | map('string') | join('+') }} {{ ['a'] | map('upper') | first }}",
        "{{ ['a', 'b', 'A', 'a'] | unique | list }} {{ numbers | min }} {{ numbers | max }} {{ numbers | sum }}",
        ("{{ numbers + [4] }} {{ numbers == [3, 1, 2] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1.0} }} "
         "{{ [1, 2] < [1, 3] }}"),
        "{{ dict(a=1, b=n) }} {{ dict({'x': 1}, y=2) }}",
        "{{ numbers.append(1) }}",
        "{{ d.update({}) }}",
        "{{ numbers | map('string') | length }}",
        "{{ messages[2].content[0]['text'] }}{{ messages[2].content | length }}",
        "{{ ['it\\'s', \"\\\"\", '\\'\"', 'a\\n\\u200b'] }}",
        "{{ numbers | last }}{{ numbers | first }}{{ empty | first }}|",
    ],
    "numbers": [
        ("{{ half }} {{ big }} {{ 1.0 }} {{ 2 * half }} {{ 1e-7 }} {{ 3 / 3 }} {{ yes + 1 }} {{ 1 == yes }} "
         "{{ 1.0 == 1 }}"),
        ("{{ '42' | int }} {{ ' 3.9 ' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '1.5' | float }} "
         "{{ 7.9 | int }} {{ yes | int }}"),
        "{{ n is odd }} {{ n is even }} {{ 1.5 is float }} {{ yes is integer }} {{ n is integer }}",
        "{{ 1 // 0 }}",
        "{{ 9223372036854775807 }}",
        "{{ 00 }} {{ 000 + 1 }} {{ 0.5 }} {{ 00.5 }}",
        "{{ 9223372036854774784.0 | int }} {{ -9223372036854774784.0 | int }}",
    ],
    "case": [
        "{{ 'straße' | upper }} {{ 'ŉ ﬁ ΐ ᾳ ᾼ İ ẞ ß'.upper() }} {{ 'İI ẞ' | lower }}",
        "{{ 'ΟΔΥΣΣΕΥΣ ΣΑΣ, Σ' | lower }} {{ 'aΣ. bΣ’c Σb' | lower }} {{ 'ΟΔΟΣ' | capitalize }} {{ 'ΑΣ ΑΣ' | title }}",
        # A modifier letter is both cased and ignored.
        "{{ 'ΑΣʰ ʰΣ ΑΣʰΑ ΑΣ. ΑΣ.Α' | lower }} {{ 'ΑΣ’' | lower }} {{ 'ΑʰΣʰ.' | lower }}",
        '{{ "it\'s o\'clock" | title }} {{ "they\'re bill\'s".title() }} {{ "x1y a_b-c d.e".title() }}',
        "{{ 'hELLO wORLD'.capitalize() }} {{ 'hELLO wORLD' | capitalize }} {{ 'hELLO wORLD'.title() }} {{ 'hELLO wORLD'.lower() }}",
        "{{ 'ǆ ß ﬃ ŉ ᾳ ᾲ'.title() }} {{ 'ßA' | capitalize }} {{ 'ﬁX'.capitalize() }} {{ 'ǆX ßX' | title }}",
        "{{ 'hello-wORLD (x [y {z <q' | title }} {{ 'a\u2003b' | title }} {{ ['ß', 'SS', 's'] | sort }}",
        "{{ 'ŉ' is lower }} {{ 'aǅ' is lower }} {{ 'ßA' is upper }} {{ 'É1' is upper }} {{ '1' is lower }}",
        "{{ ['Σ', 'ς', 'σ'] | unique | list }}",
    ],
    "lines": [
        "{{ 'a\\rb\\r\\nc\\x0bd\\x0ce\\x1cf\\x1dg\\x1eh\\x85i\\u2028j\\u2029k\\n'.splitlines() }}",
        "{{ 'a\\r\\nb\\n'.splitlines(true) }} {{ 'a\\nb'.splitlines(keepends=1) }} {{ ''.splitlines() }}",
        "{{ 'a\\u2028b\\r\\rc' | indent(1) }}|{{ '' | indent(2, true) }}|{{ 'a\\n' | indent }}|",
        "{{ 'a'.splitlines('x') }}", "{{ 'a' | indent(1.5) }}", "{{ 'a' | indent(none) }}",
    ],
    "zeros and remainders": [
        "{{ -0.0 }} {{ [-0.0] }} {{ -0.0 | tojson }} {{ -0.0 * 2 }} {{ +-0.0 }} {{ 0.0 * -1 }} {{ - -0.0 }}",
        "{{ 5.5 % -2 }} {{ -4.0 % 2 }} {{ -7.5 // 2 }} {{ 1 // -3.0 }} {{ -0.0 // 3 }} {{ 1e300 % 7 }} {{ 6.0 // 0.1 }}",
        "{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }} {{ 1 < 1.5 }}",
        "{{ '+1.5' | float }} {{ 'inf' | float }} {{ 'nan(1)' | float }} {{ '+-5' | int }} {{ 'inf' | int(3) }}",
        "{{ nope | int }}", "{{ nope | float }}", "{{ 007 }}", "{{ -'a' }}",
    ],
    "what Python refuses": [
        "{{ range(3) == [0, 1, 2] }} {{ range(3) == range(3) }} {{ range(4)[1:] | list }} {{ range(2)[1] }}",
        "{{ range(3) + [1] }}", "{{ range(3) | tojson }}", "{{ range(nope) }}", "{{ range(1, nope) }}", "{{ range(start=1) }}", "{{ range(3) < range(4) }}", "{{ range(2) * 2 }}",
        "{{ {[1]: 2} }}", "{{ [1] in d }}", "{{ d.get({}) }}", "{{ [[1]] | unique | list }}", "{{ [1] in d.keys() }}",
        "{{ half[1:] }}", "{{ d[1:] }}", "{{ nothing[:1] }}", "{{ 'a'.startswith(['a']) }}", "{{ ['a'] | sum(start='') }}",
        "{{ d | dictsort(by='nope') }}", "{% set true = 1 %}", "{% for loop in [1] %}{% endfor %}",
        "{% macro f(none) %}{% endmacro %}", "{{ 'a'.strip(nope) }}",
        "{{ 1 is odd(2) }}", "{{ n is defined(n) }}", "{{ 1 is eq(x=1) }}", "{{ numbers | sort('a') }}",
        "{{ numbers | select('') | list }}",
        "{{ [1] + (2,) }}", "{{ (1,) + [2] }}", "{{ '\\ue00' }}",
        *("{% set NAME = 1 %}".replace("NAME", name) for name in ("True", "false", "False", "none", "None")),
    ],
    "what is given": [
        "{% macro f(x='a') %}[{{ x }}]{% endmacro %}{{ f() }}{{ f(nope) }}{{ f(x=nope) }}{{ f(none) }}",
        "{% macro f(x) %}{{ varargs }}{{ kwargs }}{{ caller is defined }}{% endmacro %}{{ f(1) }}",
        "{% set kwargs = 1 %}{% macro f(varargs) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(2) }}",
        "{{ d.get('x', nope) is defined }} {{ nope | default(nope) is defined }} {{ d.get('x') is none }}",
        "{{ nope is callable }} {{ ('<' | safe) | e }} {{ '<' | e | e }} {{ true is sameas true }} {{ 1 is sameas true }}",
    ],
    "rare arguments": [
        ("{{ numbers | select('==', 2) | list }} {{ numbers | select('!=', 2) | list }} {{ numbers | select('<', 2) | list }} "
         "{{ numbers | select('<=', 2) | list }} {{ numbers | select('>', 2) | list }} {{ numbers | select('>=', 2) | list }}"),
        "{{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ ['b', 'A', 'a'] | unique(case_sensitive=true) | list }}",
        "{{ ['b', 'A'] | min }} {{ ['b', 'A', 'a'] | max(case_sensitive=true) }} {{ ['a', 'B'] | min(case_sensitive=true) }}",
        ("{{ (messages | min(attribute='role')).role }} {{ (messages | max(attribute='role')).role }} "
         "{{ messages | unique(attribute='role') | map(attribute='role') | list }}"),
        "{{ {'b': 1, 'A': 2, 'a': 3} | dictsort(case_sensitive=true) }} {{ {'b': 1, 'c': 2} | dictsort(reverse=true) }}",
        # Each filter that can ignore case, with an attribute.
        *(f"{{% set ends = [{{'a': 'b', 'n': 1}}, {{'a': 'A', 'n': 2}}, {{'a': 'B', 'n': 3}}, {{'a': 'a', 'n': 4}}] %}}"
          f"{{{{ {before}ends | {filter}(case_sensitive={sensitive}, attribute='a'){after} }}}}"
          for sensitive in ("true", "false")
          for filter, before, after in (("sort", "", " | map(attribute='n') | list"), ("unique", "", " | map(attribute='n') | list"), ("min", "(", ").n"), ("max", "(", ").n"))),
        *(f"{{{{ {{'b': 'x', 'A': 'Y', 'a': 'y', 'c': 'X'}} | dictsort({sensitive}, '{by}', {reverse}) }}}}"
          for sensitive in ("true", "false") for by in ("key", "value") for reverse in ("true", "false")),
        "{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ [1, 2] | sum(start=5) }} {{ [[1], [2]] | sum(start=[]) }}",
        "{{ [{'a': 1}, {}] | map(attribute='a', default='z') | list }} {{ [{}] | map(attribute='a') | list }}",
        ("{{ [{'a': {'b': ['x', 'y']}}] | map(attribute='a.b.1') | list }} {{ [[4, 5]] | map(attribute=1) | list }} "
         "{{ [{'a': {'0': 'z'}}] | map(attribute='a.0') | list }}"),
        "{{ 'x' | float(2.5) }} {{ '' | float }} {{ 'x' | float('y') }}",
        "{{ nothing | map('upper') | list }} {{ '' | select | list }} {{ nothing | reject | list }} {{ nothing | selectattr('a') | list }}",
        "{{ 2 * 'ab' }} {{ 2 * [1] }} {{ 2 * (1,) }} {{ 'ab' * -1 }}|",
        "{{ range is callable }} {{ word is callable }} {{ raise_exception is callable }}",
        "{{ ('<' | safe) | string ~ '<' }} {{ ('<' | safe) | default('a') }} {{ ('<' | safe) | length }}",
        "{{ numbers | map('string') | last }}",
        "{{ numbers | select | reverse }} {{ nope | reverse | list }} {{ numbers | reverse | list }} {{ d | reverse | list }}",
    ],
    "rare literals": [
        "{{ 'a\\a\\b\\f\\v\\r\\n' | tojson }} {{ '\\U0001f600\\U0000004a' }}", "{{ '\\U00110000' }}", "{{ '\\U0001f60' }}",
        "{{ 1E3 }} {{ 1e+3 }} {{ 15e-1 }} {{ 2.5E+1 }} {{ 1E-2 }}",
        "{{ 'a\\\nb' }}",
        "{{ 1e308 * 10 }} {{ -1e308 * 10 }} {{ (1e308 * 10) | tojson }} {{ (-1e308 * 10) | tojson }}",
        "{{ ['\\U000e0001'] }}", "{{ {'a': 1} == {'a': 2} }} {{ {'a': 1} == {'b': 1} }} {{ {'a': 1, 'a': 2} }}",
        # Each pair of these, of which some are the beginning of others.
        ("{% set all = [{}, {'a': 1}, {'a': 1, 'b': 2}, {'b': 2, 'a': 1}, {'b': 2}, [], [1], [1, 2], [2, 1], (), (1,), (1, 2)] %}"
         "{% for a in all %}{% for b in all %}{{ 1 if a == b else 0 }}{{ 1 if a != b else 0 }}{% endfor %}|{% endfor %}"),
    ],
    "json": [
        "{{ d | tojson }}",
        "{{ '\\x00\\x01\\x1e\\x1f\\x20\\x7e\\x7f\\x80' | tojson }}",
        "{{ '\\x1f\\x20\\x7e\\x7f\\x80' | tojson(ensure_ascii=true) }}",
        "{{ messages | tojson(indent=2) }}",
        "{{ '<é\\n\\u2028\\x07\\x7f\\\\\"' | tojson }} {{ '<é🙂\\x7f' | tojson(ensure_ascii=true) }}",
        "{{ d | tojson(sort_keys=true, separators=(',', ':')) }}",
        "{{ [] | tojson(indent=1) }}{{ {} | tojson }}{{ [[], {'a': []}] | tojson(indent=1) }}",
        "{{ [1.5, 1e16, 2.0, none, true, (1, 2)] | tojson }}",
        "{{ {1: 2, none: 3, true: 4} | tojson }}",
        "{{ nope | tojson }}",
        "{{ d.items() | tojson }}",
        "{{ d | tojson(indent=none) }}{{ d | tojson(separators=none) }}{{ d | tojson(ensure_ascii=none, sort_keys=none) }}",
        "{{ numbers | tojson(indent='\\t') }}{{ numbers | tojson(indent=0) }}",
    ],
    "what is defined": [
        ("{{ nope }}|{{ nope is defined }}{{ nope is undefined }}{{ nope is none }}{{ nothing is none }}"
         "{{ nothing is defined }}{{ nope == nothing }}"),
        "{{ nope.x }}",
        "{{ nope['x'] }}",
        "{{ d.x.y }}",
        "{{ nothing.x }}|",
        "{{ nope + 'a' }}",
        "{{ 'a' ~ nope ~ 'b' }}",
        "{{ nope() }}",
        "{{ n() }}",
        ("{{ nope | default('a') }} {{ '' | default('a') }} {{ '' | default('a', true) }} "
         "{{ nothing | default('a') }} {{ nope | d }}|"),
        "{{ nope | length }}{{ nope | list }}{{ 1 in nope }}",
        ("{{ word is string }}{{ d is mapping }}{{ numbers is iterable }}{{ word is iterable }}"
         "{{ n is iterable }}{{ d is sequence }}{{ word is sequence }}{{ yes is boolean }}{{ yes is true }}"
         "{{ n is false }}"),
        ("{% for x in [true, 1, 1.5, 'a', none, [1], {}, nope] %}{{ x is float }} {{ x is integer }} {{ x is number }} {{ x is boolean }} "
         "{{ x is string }} {{ x is sequence }} {{ x is mapping }} {{ x is iterable }} {{ x is none }} {{ x is defined }}\n{% endfor %}"),
        "{% set az_AZ09, Zz, aA = 1, 2, 3 %}{{ az_AZ09 }}{{ Zz }}{{ aA }}",
        "{{ n is odd and yes }} {{ n is even or yes }} {{ 'x' if n is odd else 'y' }} {{ 21 is divisibleby 7 in [true] }}",
        "{{ n is eq 7 }} {{ n is in [7] }} {{ n is gt 3 }} {{ n is ne(7) }} {{ 'a' is lower }}",
        "{{ nothing }} {{ yes }} {{ nothing | string }}",
        "{{ raise_exception('Only users may speak.') }}",
        "{{ strftime_now('%d %b %Y %H:%M') }}",
        "{{ raise_exception is defined }}",
        "{{ n | nofilter }}",
        "{{ n is notest }}",
        "{% notag %}",
        "{{ 1 < 'a' }}",
        "{% if yes %}",
        "{{ n",
        "{{ 'a }}",
        "{{ (1 }}",
        "{{ ] }}",
        "{% endif %}",
        "{{ a b }}",
        "{# open",
    ],
}


def rendered(template, made):
    try:
        return {"template": template, "text": made.from_string(template).render(**DATA)}
    except Exception:
        return {"template": template, "error": True}


if __name__ == "__main__":
    made = environment()
    cases = {subject: [rendered(template, made) for template in templates] for subject, templates in SUBJECTS.items()}
    file = Path(__file__).with_name("jinja.json")
    file.write_text(json.dumps({"now": NOW, "data": DATA, "cases": cases}, indent=1) + "\n")
    print(sum(map(len, cases.values())), "templates")
