"""Ordinary training programs that an edit could break, and what tells whether one did."""
