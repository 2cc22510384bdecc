"""A parsed source, and how to find and splice things in it.

text ──▶ syntax ──▶ edits, arguments, literals       find a node, write it anew
           └──▶ attributes, definitions       what a class holds, and where a name is defined
layout           order, parents and offsets of all nodes of a tree
text_lines       lines as Python numbers them
"""
