"""Commands that change the user's files, and no others do.

a stored patch ──▶ apply ──▶ the user's files ──▶ revert
"""
