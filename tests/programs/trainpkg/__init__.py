"""A package that is a program."""

answer = 42
