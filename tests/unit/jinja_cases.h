/* Templates and what Python's Jinja2 3.1.6 makes of them, set up as transformers does, with the variables below and
 * strftime_now at 2025-07-10 12:00:00. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFER_TESTS_JINJA_CASES_H
#define INFER_TESTS_JINJA_CASES_H

/* clang-format off */
static const char jinja_case_vars[] =
    "{\"s\": \"Hello World\", \"u\": \"h\\u00e9llo w\\u00f6rld \\u00df \\u01c6 \\u03a3\\u03b1\\u03c2 \\u039f\\u0394\\u039f\\u03a3 "
    "\\ufb01\", \"n\": 5, \"f\": 2.5, \"t\": true, \"no\": null, \"l\": [3, 1, 2], \"ls\": [\"b\", \"A\", \"c\", \"a\"], "
    "\"d\": {\"b\": 1, \"a\": 2, \"C\": 3}, \"users\": [{\"name\": \"Bob\", \"age\": 30, \"addr\": {\"city\": \"X\"}}, "
    "{\"name\": \"alice\", \"age\": 25, \"addr\": {\"city\": \"y\"}}, {\"name\": \"Carl\", \"age\": 30, \"addr\": {\"city\": "
    "\"x\"}}], \"e\": [], \"es\": \"\", \"big\": 123456789012345678901234567890, \"neg\": -7, \"html\": \"<a href=\\\"x\\\">&'</a>\", "
    "\"ml\": \"line1\\nline2\\n\\nline4\\n\", \"m\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", "
    "\"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}], \"nested\": "
    "{\"a\": [{\"b\": [1, 2, {\"c\": \"deep\"}]}]}, \"tree\": [{\"n\": \"a\", \"c\": [{\"n\": \"b\", \"c\": []}, {\"n\": "
    "\"c\", \"c\": [{\"n\": \"d\", \"c\": []}]}]}, {\"n\": \"e\", \"c\": []}], \"sp\": \"  pad\\t\\n \", \"items_\": {\"items\": "
    "1, \"keys\": 2}, \"zz\": 0.1, \"em\": \"a\\ud83d\\ude00b\", \"ctl\": \"a\\u0000\\u0001\\u007f\\u2028b\\u00a0\\\"\\\\/\", "
    "\"sv\": \"CTX\"}";

static const struct {
    const char *src, *expected;
} jinja_cases[] = {
    {"{{ s.upper() }} {{ s|lower }} {{ u.upper() }} {{ u.lower() }} {{ u.title() }} {{ u|title }} {{ u.capitalize() "
     "}} {{ u.swapcase() }} {{ u.casefold() }}",
     "HELLO WORLD hello world H\303\211LLO W\303\226RLD SS \307\204 \316\243\316\221\316\243 \316\237\316\224\316\237\316\243 "
     "FI h\303\251llo w\303\266rld \303\237 \307\206 \317\203\316\261\317\202 \316\277\316\264\316\277\317\202 "
     "\357\254\201 H\303\251llo W\303\266rld Ss \307\205 \316\243\316\261\317\202 \316\237\316\264\316\277\317\202 "
     "Fi H\303\251llo W\303\266rld SS \307\204 \316\243\316\261\317\202 \316\237\316\264\316\277\317\202 "
     "FI H\303\251llo w\303\266rld \303\237 \307\206 \317\203\316\261\317\202 \316\277\316\264\316\277\317\202 "
     "\357\254\201 H\303\211LLO W\303\226RLD SS \307\204 \317\203\316\221\316\243 \316\277\316\264\316\277\317\202 "
     "FI h\303\251llo w\303\266rld ss \307\206 \317\203\316\261\317\203 \316\277\316\264\316\277\317\203 "
     "fi"},
    {"{{ '\316\221\316\243'.lower() }} {{ '\316\221\316\243\316\221'.lower() }} {{ \"\316\243\".lower() }"
     "} {{ 'a.\316\243'.lower() }} {{ '\304\260'.lower()|length }} {{ '\305\211'.upper() }} {{ '\357\254\203'.title() "
     "}} {{ '\307\206'.capitalize() }}",
     "\316\261\317\202 \316\261\317\203\316\261 \317\203 a.\317\202 2 \312\274N Ffi \307\205"},
    {"{{ 3.0 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789.123456789 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1e100 }} {{ 5e-324 "
     "}} {{ 1/3 }} {{ 2.0**0.5 }} {{ -0.0 }} {{ 100.0 }} {{ 1.5e300*1e10 }}",
     "3.0 1e+16 1000000000000000.0 123456789.12345679 1e-05 0.0001 1e+100 5e-324 0.3333333333333333 1.4142135623730951 "
     "-0.0 100.0 inf"},
    {"{{ 7//2 }} {{ -7//2 }} {{ 7%-3 }} {{ -7%3 }} {{ 7.5//2 }} {{ -7.5%2 }} {{ 7/2 }} {{ 2**10 }} {{ 2**-1 "
     "}} {{ -2**2 }} {{ 2**3**2 }} {{ 7.5 % -2 }} {{ -7.5//2 }} {{ 0.0 // -3 }}",
     "3 -4 -2 2 3.0 0.5 3.5 1024 0.5 4 64 -0.5 -4.0 -0.0"},
    {"{{ True + 1 }} {{ true and 'x' }} {{ none or 'y' }} {{ not t }} {{ true }} {{ none }} {{ [true, none, "
     "1.0, 'a\"b', \"it's\", 'b\\'\"c'] }}",
     "2 x y False True None [True, None, 1.0, 'a\"b', \"it's\", 'b\\'\"c']"},
    {"{{ l[::-1] }} {{ l[1:] }} {{ l[-2:] }} {{ s[::-1] }} {{ s[1:8:2] }} {{ s[-3:] }} {{ s[10:2:-3] }} {{ "
     "l[5:1:-1] }} {{ l[::2] }} {{ u[1:4] }} {{ u[::-2] }} {{ em[1] }} {{ em[::-1] }} {{ (1,2,3)[::-1] }}"
     " {{ range(10)[2:8:3] }} {{ range(10)[::-1] }}",
     "[2, 1, 3] [1, 2] [1, 2] dlroW olleH el o rld doo [2] [3, 2] \303\251ll \357\254\201\316\243\316\224 "
     "\316\261   l\303\266 l\303\251 \360\237\230\200 b\360\237\230\200a (3, 2, 1) range(2, 8, 3) range(9, "
     "-1, -1)"},
    {"{{ l[10] }}|{{ d.x }}|{{ d['x'] }}|{{ undefinedx }}|{{ l.foo }}|{{ s.foo }}|{{ 5|default(3) }}|{{ x|default('d') "
     "}}|{{ ''|default('e', true) }}|{{ none|default('z') }}|{{ none|default('z', true) }}|{{ x|d }}",
     "||||||5|d|e|None|z|"},
    {"{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ d.items()|list }} {{ d|list }} {{ d|dictsort }} "
     "{{ d|dictsort(true) }} {{ d|dictsort(by='value') }} {{ d|dictsort(reverse=true) }} {{ d|dictsort(false,'value',true) "
     "}}",
     "dict_items([('b', 1), ('a', 2), ('C', 3)]) dict_keys(['b', 'a', 'C']) dict_values([1, 2, 3]) [('b', "
     "1), ('a', 2), ('C', 3)] ['b', 'a', 'C'] [('a', 2), ('b', 1), ('C', 3)] [('C', 3), ('a', 2), ('b', 1)] "
     "[('b', 1), ('a', 2), ('C', 3)] [('C', 3), ('b', 1), ('a', 2)] [('C', 3), ('a', 2), ('b', 1)]"},
    {"{{ items_.items() | list }} {{ items_['items'] }} {{ d['items']() | list }} {{ d.get('b') }} {{ d.get('q') "
     "}} {{ d.get('q', 'w') }} {{ d|length }} {{ 'a' in d }} {{ 'z' not in d }}",
     "[('items', 1), ('keys', 2)] 1 [('b', 1), ('a', 2), ('C', 3)] 1 None w 3 True True"},
    {"{{ ls|sort }} {{ ls|sort(case_sensitive=true) }} {{ ls|sort(reverse=true) }} {{ users|sort(attribute='age')|map(attribute='name')|list "
     "}} {{ users|sort(attribute='age,name')|map(attribute='name')|list }} {{ users|sort(attribute='addr.city',reverse=true)|map(attribute='name')|join(',') "
     "}}",
     "['A', 'a', 'b', 'c'] ['A', 'a', 'b', 'c'] ['c', 'b', 'A', 'a'] ['alice', 'Bob', 'Carl'] ['alice', 'Bob', "
     "'Carl'] alice,Bob,Carl"},
    {"{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|list }};{% endfor "
     "%} {% for k, v in users|groupby('addr.city') %}{{ k }}={{ v|length }} {% endfor %} {{ users|groupby('age')|first "
     "}}",
     "25:['alice'];30:['Bob', 'Carl']; X=2 y=1  (25, [{'name': 'alice', 'age': 25, 'addr': {'city': 'y'}}"
     "])"},
    {"{{ users|map(attribute='name')|map('upper')|list }} {{ users|selectattr('age','gt',26)|map(attribute='name')|list "
     "}} {{ users|rejectattr('age','equalto',30)|list }} {{ [1,2,3,4]|select('odd')|list }} {{ [1,2,3,4]|reject('odd')|list "
     "}} {{ [0,1,'',none]|select|list }} {{ users|selectattr('nope')|list }} {{ users|map(attribute='nope',default='D')|list "
     "}}",
     "['BOB', 'ALICE', 'CARL'] ['Bob', 'Carl'] [{'name': 'alice', 'age': 25, 'addr': {'city': 'y'}}] [1, "
     "3] [2, 4] [1] [] ['D', 'D', 'D']"},
    {"{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3,4,5]|batch(2,'x')|list }} {{ [1,2,3,4,5]|slice(3)|list }}"
     " {{ [1,2,3,4,5,6,7]|slice(3,'f')|list }} {{ ls|unique|list }} {{ ls|unique(true)|list }} {{ l|reverse|list "
     "}} {{ 'abc'|reverse }}",
     "[[1, 2], [3, 4], [5]] [[1, 2], [3, 4], [5, 'x']] [[1, 2], [3, 4], [5]] [[1, 2, 3], [4, 5, 'f'], [6, "
     "7, 'f']] ['b', 'A', 'c'] ['b', 'A', 'c', 'a'] [2, 1, 3] cba"},
    {"{{ l|min }} {{ l|max }} {{ ls|min }} {{ ls|max }} {{ l|sum }} {{ users|sum(attribute='age') }} {{ [[1],[2]]|sum(start=[]) "
     "}} {{ []|min }}|{{ []|first }}|{{ []|last }}|{{ l|first }} {{ l|last }} {{ 'xyz'|last }} {{ 'xyz'|first "
     "}} {{ users|max(attribute='age') }}",
     "1 3 A c 6 85 [1, 2] |||3 2 z x {'name': 'Bob', 'age': 30, 'addr': {'city': 'X'}}"},
    {"{{ l|join }} {{ l|join('-') }} {{ users|join(', ', attribute='name') }} {{ 'abc'|join('.') }} {{ [none,true,1.0]|join(' "
     "') }} {{ x|join }}",
     "312 3-1-2 Bob, alice, Carl a.b.c None True 1.0 "},
    {"{{ s|replace('l','L') }} {{ s|replace('l','L',1) }} {{ 'aaa'.replace('a','b',2) }} {{ 'abc'.replace('','-') "
     "}} {{ 'abc'.replace('','-',2) }} {{ ''.replace('','x') }} {{ 'aaa'|replace('','\303\251') }} {{ 5|replace(5,6) "
     "}}",
     "HeLLo WorLd HeLlo World bba -a-b-c- -a-bc x \303\251a\303\251a\303\251a\303\251 6"},
    {"{{ sp.strip() }}|{{ sp|trim }}|{{ 'xxaxx'.strip('x') }}|{{ 'xyaxy'|trim('yx') }}|{{ sp.lstrip() }}|{{ "
     "sp.rstrip() }}|{{ 'abc'.rstrip('cb') }}|{{ '\\u00a0x\\u2003'.strip() }}|{{ '\303\251a\303\251'.strip('\303\251') "
     "}}",
     "pad|pad|a|a|pad\011\n |  pad|a|x|a"},
    {"{{ 'a b  c'.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',',1) }} {{ 'a b c'.split(none,1) "
     "}} {{ '  a  b '.split() }} {{ '  a  b '.split(none,1) }} {{ 'a,b,c'.rsplit(',',1) }} {{ ' a b c '.rsplit(none,1) "
     "}} {{ ''.split() }} {{ ''.split(',') }} {{ 'abc'.split('abc') }} {{ 'aXXbXXc'.rsplit('XX') }} {{ 'x'.split(sep=',',maxsplit=2) "
     "}} {{ 'aaaa'.rsplit('aa') }} {{ 'aaa'.rsplit('aa') }} {{ 'aaa'.split('aa') }}",
     "['a', 'b', 'c'] ['a', 'b', '', 'c'] ['a', 'b,c'] ['a', 'b c'] ['a', 'b'] ['a', 'b '] ['a,b', 'c'] [' "
     "a b', 'c'] [] [''] ['', ''] ['a', 'b', 'c'] ['x'] ['', '', ''] ['a', ''] ['', 'a']"},
    {"{{ ml.splitlines() }} {{ ml.splitlines(true) }} {{ 'a\\r\\nb\\rc\\x0bd\\x85e\\u2028f'.splitlines() "
     "}} {{ ''.splitlines() }} {{ 'a\\n'.splitlines(keepends=True) }}",
     "['line1', 'line2', '', 'line4'] ['line1\\n', 'line2\\n', '\\n', 'line4\\n'] ['a', 'b', 'c', 'd', 'e', "
     "'f'] [] ['a\\n']"},
    {"{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.rpartition('-') "
     "}}",
     "('a', '-', 'b-c') ('a-b', '-', 'c') ('abc', '', '') ('', '', 'abc')"},
    {"{{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('o',5) }} {{ s.find('z') }} {{ s.index('W') }} {{ s.count('l') "
     "}} {{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }} {{ s.find('o',-5,-1) }} {{ u.find('w') }} {{ u.rfind('\303\266') "
     "}} {{ 'abc'.find('',4) }} {{ 'abc'.rfind('') }} {{ 'abc'.find('',1,2) }}",
     "4 7 7 -1 6 3 2 4 7 6 7 -1 3 1"},
    {"{{ s.startswith('He') }} {{ s.endswith('ld') }} {{ s.startswith(('x','He')) }} {{ s.startswith('lo',3) "
     "}} {{ s.endswith('lo',0,5) }} {{ s.startswith('') }} {{ ''.endswith('a') }}",
     "True True True True True True False"},
    {"{{ 'ab'.center(7) }}|{{ 'ab'.center(6,'*') }}|{{ 'abc'.center(6,'*') }}|{{ 'ab'|center(9) }}|{{ 'ab'.ljust(5,'.') "
     "}}|{{ 'ab'.rjust(5,'\303\251') }}|{{ '-5'.zfill(5) }}|{{ '5'.zfill(3) }}|{{ 'a\\tb'.expandtabs() }}"
     "|{{ 'a\\tb\\n\\tc'.expandtabs(4) }}|{{ 'prefix_x'.removeprefix('prefix_') }}|{{ 'x.py'.removesuffix('.py') "
     "}}",
     "   ab  |**ab**|*abc**|    ab   |ab...|\303\251\303\251\303\251ab|-0005|005|a       b|a   b\n    c|x|x"},
    {"{{ '123'.isdigit() }} {{ '\302\262'.isdigit() }} {{ '\302\262'.isdecimal() }} {{ 'abc'.isalpha() }}"
     " {{ 'ab1'.isalnum() }} {{ ' '.isspace() }} {{ 'Ab'.istitle() }} {{ 'A B'.isupper() }} {{ 'a1'.islower() "
     "}} {{ ''.isalpha() }} {{ '\303\251'.isascii() }} {{ 'a_1'.isidentifier() }} {{ '1a'.isidentifier() "
     "}} {{ 'a\\n'.isprintable() }} {{ ''.isprintable() }} {{ '\302\252'.islower() }} {{ '\342\205\247'.isupper() "
     "}}",
     "True True False True True True True True True False False True False False True True True"},
    {"{{ '-'.join(ls) }} {{ ','.join('abc') }} {{ ', '.join(d) }}",
     "b-A-c-a a,b,c b, a, C"},
    {"{{ '%s is %d and %.2f' % ('x', 5, 2.345) }} {{ '%5d|%-5d|%05d|%+d|% d' % (1,2,3,4,5) }} {{ '%x %X %o "
     "%#x' % (255,255,8,255) }} {{ '%e %g %G' % (12345.678, 0.00001, 1e20) }} {{ '%r %s %a' % ('\303\251', "
     "none, '\303\251') }} {{ '%%' % () }} {{ '%(a)s-%(b)d' % {'a':1,'b':2} }} {{ '%c%c' % (65,'z') }} {{ "
     "'%5s|%-5s|%.2s' % ('a','b','cdef') }} {{ '%s' % [1,2] }} {{ '%d' % 3.99 }} {{ '%*d' % (5,42) }} {{ "
     "'abc' % [] }} {{ '%i' % true }} {{ '%.3d' % 5 }} {{ '%+.1e' % 0.0 }} {{ '%f' % 1e300 }}",
     "x is 5 and 2.35     1|2    |00003|+4| 5 ff FF 10 0xff 1.234568e+04 1e-05 1E+20 '\303\251' None '\\xe9' "
     "% 1-2 Az     a|b    |cd [1, 2] 3    42 abc 1 005 +0.0e+00 1000000000000000052504760255204420248704468581108159154915854115511802457988908195786371375080447864043704443832883878176942523235360430575644792184786706982848387200926575803737830233794788090059368953234970799945081119038967640880074652742780142494579258788820056842838115669472196386865459400540160.000000"},
    {"{{ \"%s, %s!\"|format('Hello','W') }} {{ '%(x)s'|format(x=1) }} {{ '%s' % undefinedx }}",
     "Hello, W! 1 "},
    {"{{ '{} {}'.format(1,2) }} {{ '{0} {1} {0}'.format('a','b') }} {{ '{x} {y.name} {z[0]} {z[1]}'.format(x=1,y=users[0],z=l) "
     "}} {{ '{:>5}|{:<5}|{:^5}|{:*^5}'.format(1,'a','b','c') }} {{ '{:.2f} {:5.1f} {:e} {:g} {:%}'.format(3.14159,2.5,1000.0,0.1,0.25) "
     "}} {{ '{:,} {:_} {:,.2f}'.format(1234567,1234567,1234567.891) }} {{ '{!r} {!s}'.format('x','y') }} "
     "{{ '{{}} {}'.format(1) }} {{ '{:05d} {:+d} {:x} {:#x} {:b} {:o}'.format(42,42,255,255,5,8) }} {{ '{:{}"
     "}'.format('a',4) }} {{ '{:{w}.{p}f}'.format(2.5,w=8,p=3) }} {{ '{:.3}'.format('abcdef') }} {{ '{:.3}"
     "'.format(1234.5) }} {{ '{:.2}'.format(12.0) }} {{ '{:c}'.format(65) }} {{ '{:d}'.format(true) }} {{ "
     "'{}'.format(none) }} {{ '{:=+6d}'.format(4) }} {{ '{:06.2f}'.format(-1.5) }} {{ '{:<06d}|'.format(5) "
     "}} {{ '{:X^9}'.format('\303\251') }} {{ '{:_x}'.format(65536) }}",
     "1 2 a b a 1 Bob 3 1     1|a    |  b  |**c** 3.14   2.5 1.000000e+03 0.1 25.000000% 1,234,567 1_234_567 "
     "1,234,567.89 'x' y {} 1 00042 +42 ff 0xff 101 10 a       2.500 abc 1.23e+03 1.2e+01 A 1 None +    4 "
     "-01.50 500000| XXXX\303\251XXXX 1_0000"},
    {"{{ d|tojson }} {{ d|tojson(indent=2) }} {{ nested|tojson }} {{ nested|tojson(indent=1) }} {{ [1.0, "
     "1e20, none, true, '\303\251\"\\n\\t\\x01\\x7f', big]|tojson }} {{ d|tojson(sort_keys=true) }} {{ u|tojson(ensure_ascii=true) "
     "}} {{ em|tojson(ensure_ascii=True) }} {{ d|tojson(separators=(',',':')) }} {{ []|tojson(indent=2) }"
     "} {{ {}|tojson }} {{ {1:2,true:3,none:4,2.5:5}|tojson }} {{ (1,2)|tojson }} {{ ctl|tojson }} {{ ctl|tojson(ensure_ascii=true) "
     "}} {{ nested|tojson(indent='--') }} {{ {'z':1,'a':{'y':2,'b':3}}|tojson(sort_keys=true,indent=0) }}",
     "{\"b\": 1, \"a\": 2, \"C\": 3} {\n  \"b\": 1,\n  \"a\": 2,\n  \"C\": 3\n} {\"a\": [{\"b\": [1, 2, {\"c\": "
     "\"deep\"}]}]} {\n \"a\": [\n  {\n   \"b\": [\n    1,\n    2,\n    {\n     \"c\": \"deep\"\n    }\n "
     "  ]\n  }\n ]\n} [1.0, 1e+20, null, true, \"\303\251\\\"\\n\\t\\u0001\177\", 123456789012345678901234567890] "
     "{\"C\": 3, \"a\": 2, \"b\": 1} \"h\\u00e9llo w\\u00f6rld \\u00df \\u01c6 \\u03a3\\u03b1\\u03c2 \\u039f\\u0394\\u039f\\u03a3 "
     "\\ufb01\" \"a\\ud83d\\ude00b\" {\"b\":1,\"a\":2,\"C\":3} [] {} {\"1\": 3, \"null\": 4, \"2.5\": 5} "
     "[1, 2] \"a\\u0000\\u0001\177\342\200\250b\302\240\\\"\\\\/\" \"a\\u0000\\u0001\\u007f\\u2028b\\u00a0\\\"\\\\/\" "
     "{\n--\"a\": [\n----{\n------\"b\": [\n--------1,\n--------2,\n--------{\n----------\"c\": \"deep\"\n"
     "--------}\n------]\n----}\n--]\n} {\n\"a\": {\n\"b\": 3,\n\"y\": 2\n},\n\"z\": 1\n}"},
    {"{{ big }} {{ big + 0.5 if false else 'k' }} {{ big == big }} {{ big > 5 }} {{ [big]|sort }} {{ -big "
     "}} {{ big|int }} {{ big|string|length }} {{ 9223372036854775807 }} {{ 9223372036854775808 }} {{ 1e20|int "
     "}} {{ big > 1e29 }} {{ big < 1e30 }} {{ '%d' % big }} {{ '{:,}'.format(big) }}",
     "123456789012345678901234567890 k True True [123456789012345678901234567890] -123456789012345678901234567890 "
     "123456789012345678901234567890 30 9223372036854775807 9223372036854775808 100000000000000000000 True "
     "True 123456789012345678901234567890 123,456,789,012,345,678,901,234,567,890"},
    {"{{ '42'|int }} {{ '42.7'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ '0x1f'|int(base=16) }} {{ '1f'|int(0,16) "
     "}} {{ ' 12 '|int }} {{ '1_000'|int }} {{ '__1'|int }} {{ none|int }} {{ 3.9|int }} {{ true|int }} {{ "
     "[1]|int }} {{ '1e3'|int }} {{ '\331\243'|int }} {{ '-0b11'|int(0,0) }} {{ '0o17'|int(base=8) }} {{ "
     "'inf'|int }} {{ 'nan'|int(5) }} {{ '010'|int }} {{ '010'|int(9,0) }}",
     "42 42 0 7 31 31 12 1000 0 0 3 1 0 1000 3 -3 15 0 5 10 10"},
    {"{{ '1.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ 'inf'|float }} {{ '-Infinity'|float }} {{ 'nan'|float "
     "}} {{ '1_0.5'|float }} {{ ' 2 '|float }} {{ none|float(1.5) }} {{ '1e5'|float }} {{ '.5'|float }} {{ "
     "'5.'|float }} {{ '0x10'|float }}",
     "1.5 0.0 3.0 inf -inf nan 10.5 2.0 1.5 100000.0 0.5 5.0 0.0"},
    {"{{ 42.55|round }} {{ 42.55|round(1) }} {{ 42.55|round(1,'floor') }} {{ 42.55|round(1,'ceil') }} {{ "
     "2.5|round }} {{ 3.5|round }} {{ 0.5|round }} {{ -2.5|round }} {{ 42|round }} {{ 1234|round(-2) }} {{ "
     "1250|round(-2) }} {{ 1350|round(-2) }} {{ 2.675|round(2) }} {{ 1234.5|round(-2) }} {{ 42|round(0,'floor') "
     "}} {{ -1250|round(-2) }} {{ 15|round(-1) }} {{ 25|round(-1) }} {{ 1e300|round(5) }}",
     "43.0 42.5 42.5 42.6 2.0 4.0 0.0 -2.0 42 1200 1200 1400 2.67 1200.0 42.0 -1200 20 20 1e+300"},
    {"{{ -5|abs }} {{ 2.5|abs }} {{ (-3)|abs }} {{ true|abs }} {{ neg|abs }}",
     "5 2.5 3 1 7"},
    {"{{ html|e }} {{ html|escape|e }} {{ html|safe }} {{ html|e|forceescape }} {{ html|safe|e }} {{ 5|e "
     "}}",
     "&lt;a href=&#34;x&#34;&gt;&amp;&#39;&lt;/a&gt; &lt;a href=&#34;x&#34;&gt;&amp;&#39;&lt;/a&gt; <a href=\"x\">&'</a> "
     "&amp;lt;a href=&amp;#34;x&amp;#34;&amp;gt;&amp;amp;&amp;#39;&amp;lt;/a&amp;gt; <a href=\"x\">&'</a> "
     "5"},
    {"{{ 'a b/c\?d=\303\251'|urlencode }} {{ {'a':'b c','d':'e/f'}|urlencode }} {{ [('x',1),('y','z&')]|urlencode "
     "}}",
     "a%20b/c%3Fd%3D%C3%A9 a=b+c&d=e%2Ff x=1&y=z%26"},
    {"{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9,true) }} {{ 'foo bar baz qux'|truncate(11) "
     "}} {{ 'foo bar baz qux'|truncate(11,false,'...',0) }} {{ 'foobarbazqux'|truncate(5,end='',leeway=0) "
     "}}",
     "foo... foo ba... foo bar baz qux foo bar... fooba"},
    {"{{ ml|indent }}|{{ ml|indent(2,true) }}|{{ ml|indent(2,first=true,blank=true) }}|{{ 'a\\nb'|indent('> "
     "') }}|{{ ''|indent }}|{{ 'x\\n\\n'|indent(3,true,true) }}",
     "line1\n    line2\n\n    line4\n|  line1\n  line2\n\n  line4\n|  line1\n  line2\n  \n  line4\n  |a\n"
     "> b||   x\n   \n   "},
    {"{{ 'the quick  brown-fox \303\2511 _'|wordcount }} {{ 'hello-world foo(bar [x {y <z'|title }} {{ \"it's\"|title "
     "}} {{ \"it's\".title() }} {{ 'FOO bar'|capitalize }}",
     "6 Hello-World Foo(Bar [X {Y <Z It's It'S Foo bar"},
    {"{{ 1|filesizeformat }} {{ 1000|filesizeformat }} {{ 1500000|filesizeformat }} {{ 1024|filesizeformat(true) "
     "}} {{ 999|filesizeformat }} {{ '5'|filesizeformat }} {{ 1e30|filesizeformat }}",
     "1 Byte 1.0 kB 1.5 MB 1.0 KiB 999 Bytes 5 Bytes 1000000.0 YB"},
    {"{{ range(5) }} {{ range(5)|list }} {{ range(1,10,3)|list }} {{ range(5,0,-2)|list }} {{ range(3)[1] "
     "}} {{ range(3)|length }} {{ 2 in range(3) }} {{ range(0) }} {{ range(1,2,5) }} {{ range(3).start }}"
     " {{ range(3) == range(0,3,1) }}",
     "range(0, 5) [0, 1, 2, 3, 4] [1, 4, 7] [5, 3, 1] 1 3 True range(0, 0) range(1, 2, 5) 0 True"},
    {"{{ dict(a=1,b=2) }} {{ dict([('x',1)]) }} {{ dict({'p':1},q=2) }} {{ dict(['ab','cd']) }}",
     "{'a': 1, 'b': 2} {'x': 1} {'p': 1, 'q': 2} {'a': 'b', 'c': 'd'}"},
    {"{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }} {{ [1,2] == [1,2] }} {{ (1,2) == [1,2] }} {{ {'a':1}"
     " == {'a':1.0} }} {{ none == none }} {{ undefinedx == undefinedy }} {{ undefinedx == none }} {{ 1 < "
     "2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 1 != 2 }} {{ 3 >= 3.0 }} {{ 9007199254740993 "
     "== 9007199254740992.0 }} {{ 'b' in ['a','b'] }} {{ 'ell' in s }} {{ 1 in [true] }} {{ not 'x' in s "
     "}} {{ none in [none] }} {{ undefinedx in [undefinedy] }} {{ 'x' in undefinedx }}",
     "True True True True False True True True False True False True True True True False True True True "
     "True True True False"},
    {"{{ 1 is odd }} {{ 2 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ x is defined }"
     "} {{ s is defined }} {{ x is undefined }} {{ none is none }} {{ t is boolean }} {{ 1 is boolean }} "
     "{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 1 is integer }} {{ true is integer }} {{ "
     "1.0 is float }} {{ 1 is number }} {{ true is number }} {{ 's' is string }} {{ d is mapping }} {{ l "
     "is mapping }} {{ l is sequence }} {{ d is sequence }} {{ 's' is sequence }} {{ 5 is sequence }} {{ "
     "l is iterable }} {{ 5 is iterable }} {{ x is iterable }} {{ x is sequence }} {{ range is callable }"
     "} {{ s.upper is callable }} {{ x is callable }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ none is "
     "sameas none }} {{ 1 is sameas true }} {{ 'a' is in ['a'] }} {{ 1 is eq 1 }} {{ 1 is lt(2) }} {{ 5 is "
     "ge 5 }} {{ 'upper' is filter }} {{ 'zzz' is filter }} {{ 'odd' is test }} {{ 1 is not odd }} {{ html|e "
     "is escaped }} {{ html is escaped }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ 5 is "
     "equalto 5 }} {{ 5 is ne(4) }} {{ d.keys() is mapping }}",
     "True True True False False True True True True False True False True True False True True True True "
     "True False True True True False True False True True True True True True True True False True True "
     "True True True False True False True False False True True True False"},
    {"{% set ns = namespace(x=1, y='a') %}{{ ns.x }}{% set ns.x = 5 %}{{ ns.x }} {{ ns }} {{ ns.z }} {{ ns['x'] "
     "}} {% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }} {{ namespace({'a':1}).a }} {{ ns.x "
     "is defined }} {% set ns.q, b = 1, 2 %}{{ ns.q }}{{ b }}",
     "15 <Namespace {'x': 5, 'y': 'a'}>  5 11 1 True 12"},
    {"{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first "
     "}}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a','b') }}{{ "
     "loop.changed(i) }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
     "1032TrueFalse31aTrue10 2121FalseFalse332bTrue10 3210FalseTrue31aTrue10 "},
    {"{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {{ loop.last }}{% else %}none{% "
     "endfor %}|{% for i in [] %}x{% else %}empty{% endfor %}|{% for i in l if i > 10 %}x{% else %}filtered{% "
     "endfor %}",
     "1/2:3 False2/2:2 True|empty|filtered"},
    {"{% for x in tree recursive %}[{{ loop.depth }}{{ loop.depth0 }}{{ x.n }}{{ loop.index }}/{{ loop.length "
     "}}{% if x.c %}{{ loop(x.c) }}{% endif %}]{% endfor %}",
     "[10a1/2[21b1/2][21c2/2[32d1/1]]][10e2/2]"},
    {"{% for a, b in [[1,2],[3,4]] %}{{ a }}{{ b }}{% endfor %} {% for (a, b), c in [[[1,2],3]] %}{{ a }}"
     "{{ b }}{{ c }}{% endfor %} {% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %} {% for k in d %}{{ "
     "k }}{% endfor %} {% for c in 'h\303\251y' %}{{ c }}.{% endfor %} {% for x in undefinedx %}{{ x }}{% "
     "else %}E{% endfor %}",
     "1234 123 b1a2C3 baC h.\303\251.y. E"},
    {"{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i == 6 %}{% break %}{% endif "
     "%}{{ i }}{% endfor %} {% for i in l %}{% continue %}{% else %}E{% endfor %} {% for i in l %}{% break "
     "%}{% else %}E{% endfor %}",
     "01245 E E"},
    {"{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }} {% if true %}{% set y = 5 "
     "%}{% endif %}{{ y }} {% for i in l %}{{ q }}{% set q = i %}{{ q }}{% endfor %}{{ q }}",
     "3121 5 312"},
    {"{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }} {{ "
     "m(1,3) }} {{ m(a=5) }} {{ m(1,2,3,4,5) }} {{ m(1,z=9) }} {{ m() }} {{ m.name }} {{ m.arguments }} {{ "
     "m.catch_kwargs }} {{ m.catch_varargs }} {{ m.caller }}",
     "121(){} 131(){} 525(){} 123(4, 5){} 121(){'z': 9} 2(){} m ('a', 'b', 'c') True True False"},
    {"{% macro w(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) w(3) %}{{ y }}!{% endcall %} {% macro w2() "
     "%}{{ caller is defined }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ w2() }} {% call w2() "
     "%}hi{% endcall %}",
     "<3!> False Truehi"},
    {"{% set v %}block {{ n }}{% endset %}{{ v|length }}{{ v }} {% set v2 | upper %}low{% endset %}{{ v2 "
     "}} {% filter upper|replace('A','b') %}abc{% endfilter %} {% with a=1, b=2 %}{{ a+b }}{% endwith %} "
     "{% with %}{% set zz2 = 1 %}{{ zz2 }}{% endwith %}{{ zz2 }}",
     "7block 5 LOW bBC 3 1"},
    {"{% raw %}{{ not }} {% x %}{% endraw %} {# comment #} {{ '{{' }} {{ \"%}\" }}",
     "{{ not }} {% x %}  {{ %}"},
    {"{{ 'a' ~ 1 ~ none ~ 2.0 ~ true ~ undefinedx }} {{ 'a' 'b' \"c\" }} {{ 'x' * 3 }} {{ [1] * 2 }} {{ 2 "
     "* 'ab' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' if false }}|{{ 'a' if true else 'b' }} {{ 'a' if "
     "false else 'b' if false else 'c' }} {{ 1 if x is defined else 2 }}",
     "a1None2.0True abc xxx [1, 1] abab [1, 2] (1, 2) |a c 2"},
    {"{{ (1,) }} {{ () }} {{ (1,2) }} {{ 1,2 }} {{ [] }} {{ {} }} {{ {'a':[1,{'b':none}]} }} {{ ('a') }} "
     "{{ [1,2,] }} {{ {'a':1,} }} {{ {1:2, 1.0:3, true:4} }}",
     "(1,) () (1, 2) (1, 2) [] {} {'a': [1, {'b': None}]} a [1, 2] {'a': 1} {1: 4}"},
    {"{{ \"\\x41\\u00e9\\U0001F600\\n\\t\\\\ \\101 \\q \\'\" }} {{ 'it''s' }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 "
     "}} {{ 0o17 }} {{ 1.5e3 }} {{ 1e2 }} {{ 1E-2 }}",
     "A\303\251\360\237\230\200\n\011\\ A \\q ' its 1000 31 5 15 1500.0 100.0 0.01"},
    {"{{ users.0.name }} {{ users[0]['addr'].city }} {{ users[-1].name }} {{ nested.a[0].b[2].c }} {{ l.0 "
     "}} {{ users|map(attribute='addr.city')|list }} {{ [[1,2],[3]]|map(attribute='0')|list }} {{ [[1,2],[3]]|map(attribute=0)|list "
     "}}",
     "Bob X Carl deep 3 ['X', 'y', 'x'] [1, 3] [1, 3]"},
    {"{{ ctl|string|length }} {{ [ctl] }} {{ ['\\u200b\\u00ad\\ue000\\U000e0001 \303\251'] }} {{ [u] }} {{ "
     "['\\x80\\xa0'] }} {{ [1.0,1e50,-0.0] }}",
     "10 ['a\\x00\\x01\\x7f\\u2028b\\xa0\"\\\\/'] ['\\u200b\\xad\\ue000\\U000e0001 \303\251'] ['h\303\251llo "
     "w\303\266rld \303\237 \307\206 \316\243\316\261\317\202 \316\237\316\224\316\237\316\243 \357\254\201'] "
     "['\\x80\\xa0'] [1.0, 1e+50, -0.0]"},
    {"{{ strftime_now('%Y-%m-%d %d %b %B %a %A %H:%M:%S %p %I %j %y %% %-d %e') }} {{ strftime_now('%c|%x|%X|%f|%Z|%z|') "
     "}}",
     "2025-07-10 10 Jul July Thu Thursday 12:00:00 PM 12 191 25 % 10 10 Thu Jul 10 12:00:00 2025|07/10/25|12:00:00|000000|||"},
    {"{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() "
     "}}{{ c.next() }} {% set j = joiner('|') %}{{ j() }}x{{ j() }}y{{ j() }}",
     "abaaNonea x|y|"},
    {"{% generation %}gen {{ n }}{% set inner = 3 %}{{ inner }}{% endgeneration %}{{ inner }}",
     "gen 53"},
    {"{{ m|length }} {{ m[1].tool_calls[0].function.arguments|tojson }} {{ m|map(attribute='role')|list }"
     "} {% for x in m %}{{ x.content is none }}{{ x['tool_calls'] is defined }}{% endfor %}",
     "2 {\"x\": 1} ['user', 'assistant'] FalseFalseTrueTrue"},
    {"{{ s|attr('upper') is callable }} {{ d|attr('a') is defined }} {{ d|attr('items') is defined }} {{ "
     "s|string }} {{ 5|string + '!' }} {{ l|list }} {{ 'ab'|list }} {{ d.items()|first }} {{ d|items|list "
     "}} {{ undefinedx|items|list }}",
     "True False True Hello World 5! [3, 1, 2] ['a', 'b'] ('b', 1) [('b', 1), ('a', 2), ('C', 3)] []"},
    {"{{ s[undefinedx] }}|{{ l['x'] }}|{{ l[1.0] }}|{{ d[l] }}|{{ s.0 }}|{{ l[true] }}|{{ d[none] }}|",
     "||||H|1||"},
    {"{{ [none,none]|sort }} {{ [1,1.0,true]|unique|list }} {{ ['a','B']|sort|join }} {{ d.values()|sort "
     "}} {{ d|sort }} {{ 'hello'|sort|join }} {{ [[2,1],[1,5]]|sort }} {{ users|map(attribute='age')|unique|list "
     "}}",
     "[None, None] [1] aB [1, 2, 3] ['a', 'b', 'C'] ehllo [[1, 5], [2, 1]] [30, 25]"},
    {"{{ users|selectattr('name','in',['Bob'])|list|length }} {{ users|selectattr('addr.city','eq','x')|map(attribute='name')|first "
     "}} {{ [1,2,3]|select('greaterthan',1)|list }} {{ ['a','1']|select('string')|list }} {{ [1,'a']|map('string')|join('/') "
     "}} {{ ['a ',' b']|map('trim')|list }} {{ [{'a':1}]|map('tojson')|list }} {{ ['x','y']|map('replace','x','z')|list "
     "}} {{ [1.234]|map('round',1)|list }} {{ ['a']|map('default','q')|list }}",
     "1 Carl [2, 3] ['a', '1'] 1/a ['a', 'b'] ['{\"a\": 1}'] ['z', 'y'] [1.2] ['a']"},
    {"{{ l and d }} {{ e or l }} {{ not e }} {{ 0 or '' or none }} {{ (e|length == 0) and 'empty' }} {{ x "
     "and y }}|{{ 1 and undefinedx }}|",
     "{'b': 1, 'a': 2, 'C': 3} [3, 1, 2] True None empty ||"},
    {"{{ -n }} {{ +n }} {{ -n|abs }} {{ - -n }} {{ -f }} {{ n - -1 }} {{ not -n }} {{ -true }} {{ +true }"
     "} {{ -n**2 }}",
     "-5 5 5 5 -2.5 6 False -1 1 25"},
    {"{{ n.__class__ }}|{{ ''.join(['a']) }} {{ (1.5).is_integer() }} {{ 2.0.is_integer() }} {{ l.index(1) "
     "}} {{ l.count(3) }} {{ (1,2).index(2) }} {{ l.copy() }} {{ d.copy() }}",
     "|a False True 1 1 1 [3, 1, 2] {'b': 1, 'a': 2, 'C': 3}"},
    {"{{ '' if no else 'N' }} {{ no|string }} {{ no ~ '' }} {{ [no] }} {{ no|tojson }} {{ t|tojson }} {{ "
     "t|string|lower }}",
     "N None None [None] null true true"},
    {"{% block foo %}B{{ n }}{% endblock %} {% for i in l %}{% block bar scoped %}{{ i }}{% endblock %}{% "
     "endfor %}{% print 1, 'a' %}{% if n > 3: %}colon{% endif %}",
     "B5 3121acolon"},
    {"{{ [1,2,3][-1:] }} {{ m[0:1]|length }} {{ l[:] }} {{ l[-100:100] }} {{ l[100:] }} {{ 'abc'[1:][0] }"
     "} {{ 'abc'[5:] }}|{{ s[:5] ~ '...' }} {{ l[2:0:-1] }} {{ l[-1:-3:-1] }} {{ l[::-2] }}",
     "[3] 1 [3, 1, 2] [3, 1, 2] [] b |Hello... [2, 1] [2, 1] [2, 3]"},
    {"{{ '%s' | format(x) }} {{ 'a%sb' | format('-') }} {{ ['a','b'] | map('upper') | join }} {{ 'x' is in "
     "'xyz' }} {{ 3 in l and 4 not in l }} {{ 'k' in {'k':1} }} {{ 'a' not in 'abc' }}",
     " a-b AB True True True False"},
    {"a\n{% if true %}\nb\n{% endif %}\nc\n",
     "a\nb\nc"},
    {"  {% if true %}  \n x\n  {% endif %}\n y",
     "  \n x\n y"},
    {"a {%- if true %} b {%- endif -%} c",
     "a bc"},
    {"{% if true -%}\n\n  x{% endif %}\n\n\n",
     "x\n"},
    {"{%+ if true %} x {%+ endif %}",
     " x "},
    {"  {%+ if true +%}\n x\n  {%- endif %}\n",
     "  \n x"},
    {"{# c #}\nx\n  {# c #}  \ny\n  {#- c -#}  \n z",
     "x\n  \nyz"},
    {"{{ 1 }}\n{{ 2 -}}\n\n{{- 3 }}",
     "1\n23"},
    {"  {{ 1 }}\n",
     "  1"},
    {"\n\n{% set a = 1 %}\n{{ a }}\n",
     "\n\n1"},
    {"{% raw %}\n x {{ y }}\n  {% endraw %}\nz",
     "\n x {{ y }}\nz"},
    {"{%- raw -%}\n x \n{%- endraw -%}\n z",
     "xz"},
    {"a\015\nb\015c\n{% if true %}\015\nx{% endif %}",
     "a\nb\nc\nx"},
    {"x\n\n",
     "x\n"},
    {"x\n",
     "x"},
    {"\n",
     ""},
    {"",
     ""},
    {"  {%- set a = 1 -%}  b",
     "b"},
    {"{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\nend",
     "  1\n  2\nend"},
    {"\011{% if 1 %}\011\n\011t\n\011{% endif %}\011\n",
     "\011\n\011t\n\011"},
    {"text {% if 1 %}\nx{% endif %} \n",
     "text x "},
    {"{{ \"a\" }}{% if 1 %}\n{% endif %}b",
     "ab"},
    {"{#\nmulti\n#}\n\nx",
     "\nx"},
    {"{#-#}x",
     "x"},
    {"{{-1}}",
     "1"},
    {"{{- -1 -}}",
     "-1"},
    {"{{+1}}",
     "1"},
    {"{%if true%}x{%endif%}",
     "x"},
    {"{% raw %}a{% endraw %}{% raw %}b{%- endraw +%}\n c",
     "ab\n c"},
    {"  {{ x }}  {% if 1 %}  y{% endif %}",
     "      y"},
    {"\302\240{% if 1 %}x{% endif %}",
     "x"},
    {"a\n \302\240 {% if 1 %}x{% endif %}",
     "a\nx"},
    {" a\n\014{% if 1 %}x{% endif %}",
     " a\nx"},
    {"{{ \"a\nb\" }}",
     "a\nb"},
    {"{{ \"a\015\nb\" }}",
     "a\nb"},
    {"{{ 1 }} {{ {\"a\":{\"b\":1}} }} {{ {\"a\":{}}}}",
     "1 {'a': {'b': 1}} {'a': {}}"},
    {"{{ \"}}\" }}{{ '%}' }}",
     "}}%}"},
    {"{%- for i in [1] -%} {{ i }} {%- endfor -%}\n\n x",
     "1x"},
    {"{% set x %}\n a\n{% endset %}\n[{{ x }}]",
     "[ a\n]"},
    {"{{ \"\"\"\" }}",
     ""},
    {"{{ '' }}",
     ""},
    {"line\n    {% for i in [1,2] %}\n    - {{ i }}\n    {% endfor %}\nend\n\n",
     "line\n    - 1\n    - 2\nend\n"},
    {"{% for i in [1] %}{{ sv }}{% endfor %}{% set sv = 1 %}",
     ""},
    {"{% macro m() %}[{{ sv }}]{% endmacro %}{{ m() }}{% set sv = 1 %}{{ m() }}",
     "[][1]"},
    {"{% for i in [1] %}{{ sv }}{% endfor %}{% if true %}{% set sv = 1 %}{% endif %}",
     "CTX"},
    {"{{ sv }}{% for i in [1] %}{{ sv }}{% endfor %}{% set sv = 1 %}",
     "CTXCTX"},
    {"{% for i in [1,2] %}{% for j in [1] %}[{{ sv }}]{% endfor %}{% set sv = i %}{% endfor %}",
     "[][]"},
    {"{% set sv %}{{ sv }}{% endset %}{{ sv }}",
     ""},
    {"{% if false %}{% set sv=1 %}{% endif %}{{ sv }}",
     "CTX"},
    {"{% if false %}{% set sv=1 %}{% else %}{% for i in [1] %}{{ sv }}{% endfor %}{% endif %}",
     "CTX"},
    {"{% for sv in [1] %}{% endfor %}{{ sv }}",
     "CTX"},
    {"{% macro sv() %}{% endmacro %}{{ sv is callable }}",
     "True"},
    {"{% for i in [1] %}{{ sv }}{% endfor %}{% macro sv() %}{% endmacro %}",
     ""},
    {"{% if true %}{% for i in [1] %}{{ sv }}{% endfor %}{% set sv = 1 %}{% endif %}",
     "CTX"},
    {"{% for i in [1] %}{{ sv }}{% endfor %}{% if true %}{% if true %}{% set sv = 1 %}{% endif %}{% endif "
     "%}{% set sv = 2 %}{{ sv }}",
     "CTX2"},
    {"{% with sv = sv %}{{ sv }}{% endwith %}",
     "CTX"},
    {"{% with a = 1 %}{% for i in [1] %}{{ sv }}{% endfor %}{% set sv = 1 %}{% endwith %}",
     ""},
    {"{% set ns = 1 %}{% for i in [1] %}{% set sv = 1 %}{% endfor %}{{ sv }}",
     "CTX"},
    {"{% for i in [1,2] %}{% set sv = sv ~ i %}{{ sv }}{% endfor %}{{ sv }}",
     "CTX1CTX2CTX"},
};
/* clang-format on */

#endif
