"""A parsed source, and how to find and splice things in it.

text ──▶ syntax ──▶ edits, arguments, literals       find a node, write it anew
           └──▶ attributes, aliases, imports       by which names a thing is called
layout           order, parents and offsets of all nodes of a tree
text_lines       lines as Python numbers them
"""
