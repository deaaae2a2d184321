"""Texts that break parsers: JSON that must be accepted, JSON that must be refused, and strings that break programs.

The JSON follows the cases of the public JSON test suites: each row is one corner of RFC 8259.
"""

from __future__ import annotations

ACCEPTED_JSON = [
    *(
        *(b"[]", b"{}", b'""', b"0", b"-0", b"true", b"false", b"null", b"[[]   ]", b'[""]', b"[1\n]", b" [1]"),
        *(b"[1] ", b"\t\r\n[]"),
    ),
    *(b"[1e1]", b"[1E1]", b"[1E-2]", b"[1E+2]", b"[0e+1]", b"[0e1]", b"[-0.0]", b"[123.456e78]", b"[-1]"),
    *(b"[1e-999]",),
    *(b"[1e999]", b"[-1e999]", b"[123456789012345678901234567890]", b"[0.1234567890123456789012345678901234567890]"),
    *(
        *(b'["\\u0060\\u012a\\u12AB"]', b'["\\ud801\\udc37"]', b'["\\"\\\\\\/\\b\\f\\n\\r\\t"]', b'["\\u0000"]'),
        b'["\\u0022"]',
    ),
    *(b'["\\uDBFF\\uDFFE"]', b'["\\uFFFF"]', b'["a/*b*/c/*d//e"]', b'["\\\\u0000"]', b'["\x7f"]', b'["\\u2028"]'),
    *('["\u2028\u2029"]'.encode(), '["\U0010ffff"]'.encode(), '["\ufeff"]'.encode(), '["\u20ac\U0001d11e"]'.encode()),
    *(b'{"a":"b","a":"c"}', b'{"a":"b","a":"b"}', b'{"":0}', b'{"\\u0061":1,"a":2}', b'{"a":[]}', b'{"a" :\n1}'),
    b"[" * 90 + b"]" * 90,
]

REFUSED_JSON = [
    *(b"[1 true]", b"[1,,2]", b'["x"]]', b'["",]', b'["x"', b"[3[4]]", b"[1:2]", b"[,1]", b"[1,]", b"[1,,]", b"["),
    *(b"]", b"[,]", b"[-]", b"[", b"[*]"),
    *(b'["a",4,1,', b"[1,\n1\n,1", b"[{}", b"[fals]", b"[nul]", b"[tru]", b"[True]", b"[NULL]", b"[nan]", b"[NaN]"),
    *(b"[Infinity]", b"[-Infinity]"),
    *(b"[++1234]", b"[+1]", b"[+Inf]", b"[-01]", b"[-1.0.]", b"[-2.]", b"[-NaN]", b"[.-1]", b"[.2e-3]", b"[0.1.2]"),
    *(b"[0.3e+]", b"[0.3e]", b"[0.e1]"),
    *(b"[0e+]", b"[0e]", b"[0E]", b"[1.0e+]", b"[1.0e-]", b"[1.0e]", b"[1 000.0]", b"[1eE2]", b"[2.e3]", b"[9.e+]"),
    *(b"[1+2]", b"[0x1]", b"[0x42]", b"[-foo]"),
    *(b"[- 1]", b"[-012]", b"[-.123]", b"[1.a]", b"[1ea]", b"[012]", b"[1_000]", b"[0b1]", b"[1n]"),
    *("[\uff11]".encode(), b"[1e1.5]", b"[1.]", b"[--1]"),
    *(b'["x", truth]', b'{"x"::"b"}', b'{"x", null}', b'{"x":,}', b'{"a":"a" 123}', b"{key: 'value'}", b"{'a':0}"),
    *(b'{"id":0,}', b'{"id":0,,}', b"{1:1}"),
    *(b'{"a"', b'{"a":', b'{"a" b}', b'{:"b"}', b'{"a":true} "x"', b'{"a":"b"}/**/', b'{"a":"b"}#'),
    *(b'{"a":/*c*/"b"}', b"{a:b}", b'{"a":1 "b":2}', b"{[]:1}"),
    *(b'["\\uD800\\"]', b'["\\uD800\\u"]', b'["\\uD800\\u1"]', b'["\\uD800\\u1x"]', b"[\xc3\xa9]", b'["\\x00"]'),
    *(b'["\\\\\\"]', b'["\\\t"]', b'["\\a"]'),
    *(b'["\\u00A"]', b'["\\uD834\\uDd"]', b'["\\u\xe5"]', b'["\\"]', b'["', b'["new\nline"]', b'["\t"]'),
    *(b'["\x00"]', b'["\x1f"]', b'["\\U0041"]', b"['a']", b"[`a`]"),
    *(b'["\xff"]', b'["\xc0\xaf"]', b'["\xed\xa0\x80"]', b'["\xf4\xbf\xbf\xbf"]', b'["\xf0\x80\x80"]'),
    *(b'["\xe0\xff"]', b'["\x80"]', b"\xff\xfe[\x00]\x00", b"[\xe2\x81\xa0]"),
    *(b"", b" ", b"\x0c[]", b"[\x0b]", b"[\xc2\xa0]", b"<.>", b"[<null>]", b"[a\xe5]", b"2@", b"{}}", b"[][]"),
    *(b"1]", b"true false", b"abc", b"#[]", b"//\n[]", b"\x00"),
    *(b"[undefined]", b"[function(){}]", b"[new Date]", b"[1;2]", b"(1)", b"[...]", b"[/a/]", b"[True,]", b"{,}"),
    *(b'["a"b]', b'"a" "b"', b"-", b"+", b".", b"e"),
]

NAUGHTY = [
    *("", " ", "\t", "undefined", "null", "NULL", "(null)", "nil", "true", "None", "NaN", "Infinity", "-Infinity"),
    *("0", "-1", "1e1000", "0x0", "1/0"),
    *("../../etc/passwd", "..\\..\\windows", "/dev/null", "file:///etc/passwd", "C:\\", "%s%s%s%n", "%d", "{0}"),
    *("{}", "${HOME}", "$(touch /tmp/x)", "`id`"),
    *("' OR 1=1 --", '"; DROP TABLE users', "1;SHUTDOWN", "*", "?", "[a-z]*", "gw:*", "{tester}", "EVAL x 0"),
    *("FLUSHALL", "a:b:c", "a b c", "a,b", "a=b&c=d"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)", "&lt;", "]]>"),
    *("<!DOCTYPE x [<!ENTITY y SYSTEM 'file:///'>]>", "{{7*7}}", "#{7*7}"),
    *("a\nb", "a\rb", "a\n\nX-Injected: 1", "\x00", "a\x00b", "\x1b[31mred\x1b[0m", "\x07", "\x7f", "\x85"),
    *("\u2028", "\u2029", "\u202etxt.exe", "\u200b", "\ufeff", "\ufffe"),
    *("\u00e9", "e\u0301", "\u0130", "\u01c4", "\ufb01", "\U0001f600", "\U0001f469\u200d\U0001f680"),
    *("\u0e01\u0e31", "\u0627\u0644", "\u05d0", "\u7530\u4e2d", "\uac00"),
    *("Z" + "\u0351" * 60, "\U000e0001", "\U0010ffff", "\u3000", "\u00ad", "\u2060", "__proto__", "constructor"),
    *("hasOwnProperty", "toString", "x" * 257, "a" * 256),
    *("sk-tester-abcdefgh-0000000000000000000000000000", "Bearer x", "Basic eDp5", '"', "'", "\\", '\\"'),
    *("\\u0000", "\\n", "%00", "%0a", "%2e%2e%2f", "+", "#", ";", "|", "&", "!"),
]
