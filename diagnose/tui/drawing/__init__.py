"""Pure functions from what is known to lines of text: charts, source code, diffs, lanes. They touch no screen."""
