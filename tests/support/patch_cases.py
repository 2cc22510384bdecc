"""Files before and after a patch, and texts to make more of."""

from __future__ import annotations

from hypothesis import strategies as st

CASES = {
    "plain": ("train.py", b"a\nb\nc\n", b"a\nB\nc\n"),
    "new file": ("new/shim.py", None, b"x = 1\n"),
    "new empty file": ("pkg/__init__.py", None, b""),
    "deleted file": ("old.py", b"x = 1\n", None),
    "no newline at the end, before": ("a.py", b"a\nb", b"a\nb\n"),
    "no newline at the end, after": ("a.py", b"a\nb\n", b"a\nc"),
    "no newline on either side": ("a.py", b"a\nb", b"a\nc"),
    "CRLF": ("dos.py", b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"),
    "byte-order mark": ("bom.py", b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfa\nB\n"),
    "latin-1": ("latin.py", b"# coding: latin-1\n# \xe9\nx = 1\n", b"# coding: latin-1\n# \xe9\nx = 2\n"),
    "a space in the name": ("my model.py", b"a\n", b"b\n"),
    "a letter beyond ASCII in the name": ("mod\u00e8le.py", b"a\n", b"b\n"),
    "a quote in the name": ('say "hi".py', b"a\n", b"b\n"),
    "from empty": ("empty.py", b"", b"x\n"),
    "lines that look like headers": ("h.py", b"-- a\n++ b\n@@\n", b"-- a\n++ c\n@@\n"),
    "form feeds and lone carriage returns": ("f.py", b"a\x0cb\rc\nd\n", b"a\x0cb\rc\nD\n"),
}
"""By case: the path, and the bytes before and after; None where there is no file."""

LINES = st.lists(
    st.sampled_from([b"a", b"b", b"", b"x = 1", b"-a", b"+b", b" c", b"\\ d", b"@@ -1 +1 @@", b"\r"]), max_size=12
)
TEXTS = st.tuples(LINES, st.booleans()).map(lambda t: b"\n".join(t[0]) + (b"\n" if t[1] and t[0] else b""))
