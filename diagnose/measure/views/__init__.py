"""Views of one rank's tables that every measure shares: names, kernel classes, operators, launches, shapes, stacks.

columns of a Trace ──▶ names, kernel_classes       what a row is
                  ──▶ nesting ──▶ op_tree ◀── launches      which operator launched which device work
                                    └──▶ shapes ──▶ operands       what the operator was given
                  ──▶ loader_functions ──▶ stacks ──▶ host_activity       what host threads were doing
noise, growth, counters: statistics of lengths, of trends, of device counters
"""
