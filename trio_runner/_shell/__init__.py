"""The trio part: it decides *when*; what is legal is the turn machine's business.

    runner.py        one turn as an async iterator: who may call what when
    steps.py         what happens in one step, and in which order
    ending.py        how a turn stops: what is recorded, what leaves, by when
    batch.py         the calls of one reply as child tasks of one nursery
    finishing.py     the only shields
    leaving.py       which error leaves, and what a cancellation is
    commits.py       what was recorded and is not known to be durable yet
    conversation.py  what outlives a turn: history, session, the one-turn lock
    hooks.py, notices.py, context.py     what users see of a running turn
    slots.py         named limiters that nested turns cannot deadlock on
    owner.py         a toolset's own task
    agent.py         ToolAgent
    tools.py, function_tools.py          plain functions as tools
    ki.py            where Ctrl-C may strike: the trampoline into user code; run()

Every rule about KeyboardInterrupt is stated in ``ki.py``.
"""
