"""Adapters: foreign systems behind trio_runner's protocols, one extra each.

Import the one you need (`trio_runner_adapters.mcp`); this module imports none,
since each needs packages of its own. Adapters use public names of
`trio_runner` only.
"""
