import sys
from ast import literal_eval

for word in sys.argv[1:]:
    if "=" not in word:
        exec(open(word).read())
        continue
    key, value = word.removeprefix("--").split("=")
    if key not in globals():
        raise ValueError(f"no setting is called {key}")
    try:
        globals()[key] = literal_eval(value)
    except (SyntaxError, ValueError):
        globals()[key] = value
