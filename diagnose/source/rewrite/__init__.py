"""Edits that fixers share: text in, splices of the text out.

tree, dataflow ──▶ replacement, functional, numpy_to_torch       another expression in the same place
              ├──▶ removal ──▶ leftovers       statements that go, and what then is unused
              ├──▶ with_blocks, context_removal, hooks, shim       code around code
              └──▶ line_map, edited_lines       where lines went, and which ones are new
"""
