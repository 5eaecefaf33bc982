"""The rules of the conformance kits, one function for each.

What may live here: what a rule does with an implementation, and what it calls
a broken promise. Which rules a kit has, and their promises in words, stand in
``_check_journal.py``, ``_check_model.py`` and ``_check_toolset.py``.

    odd_records.py       records of every kind, and a strict comparison
    journal_kit.py       what the journal's rules share
    journal_tickets.py   append, wait, tickets and records
    journal_sessions.py  open, aclose, restarts
    journal_faults.py    failing commits, a whole life, an agent's turn
    turn.py              a turn of an agent, and the contract's checks of it
    model_rules.py       a model
    toolset_kit.py       what the toolset's rules share
    toolset_listing.py   names, listing, entering and leaving
    toolset_calls.py     calls, cancelled and side by side
"""
