"""The screen: a run as it happens, or a finished one. It reads the journal's events and nothing else.

feed ──▶ app ──▶ header, tabs, screens
                    tabs ──▶ panels ──▶ widgets ──▶ drawing ──▶ theme
"""
