"""The pure part: values, rules and the turn machine.

Nothing here knows trio, a clock, a random generator or a file; only the
standard library and attrs may be imported. ``tests/test_layers.py`` holds it.
"""
