"""Kernels, operators and the timeline as people read them, for the screen and for the page.

kernel_names ──▶ profile_tables      rows of words, sorted as asked
span_looks                           the colour, the mark and the name of every class of span
page_data                            all of it as the JSON that the page's script draws
"""
