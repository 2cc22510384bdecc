"""A parsed source, and how to find and splice things in it.

text ──▶ syntax ──▶ edits, arguments, literals       find a node, write it anew
           └──▶ attributes, aliases, imports       by which names a thing is called
text_lines       lines as Python numbers them
"""
