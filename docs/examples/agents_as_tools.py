"""An agent that asks another one twice, side by side."""

import trio

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import Scripted, ScriptedModel, call


async def search(topic: str) -> str:
    """Search a library."""
    await trio.sleep(0.1)
    return f"three books on {topic}"


class Watcher:
    """Prints what happens in the agents below."""

    def on_event(self, event: ev.Event) -> None:
        match event:
            case ev.NestedEvent(event=ev.CallStarted(call=started)):
                print(f"{'  ' * event.depth}{event.agent} runs {started.name}")
            case ev.NestedEvent(event=ev.TurnEnded(end_reason=reason)):
                print(f"{'  ' * event.depth}{event.agent}: {reason.value}")
            case _:
                pass


def librarian(request: tr.ModelRequest) -> object:
    """Stands for a model: searches for what it is asked, then says what was found."""
    last = request.history[-1]
    if last.tool_results:
        found = last.tool_results[0].text
        return Scripted(tr.Message.assistant(f"I found {found}.", usage=tr.Usage(40, 10)))
    return tr.Message.assistant(tool_calls=[call("search", topic=last.text)], usage=tr.Usage(20, 5))


async def main() -> None:
    child = tr.ToolAgent("librarian", model=ScriptedModel([librarian] * 4), tools=[search])
    script = [
        tr.Message.assistant(
            tool_calls=[
                call("agent__librarian", id="a", message="fish"),
                call("agent__librarian", id="b", message="ships"),
            ],
            usage=tr.Usage(100, 20),
        ),
        tr.Message.assistant("Six books in all.", usage=tr.Usage(150, 10)),
    ]
    journal = tr.MemoryJournal()
    agent = tr.ToolAgent(
        "editor", model=ScriptedModel(script), tools=[child], journal=journal, session="s-1"
    )
    async with agent:
        reply = await agent.generate("What do we have on the sea?", observers=[Watcher()])
    print(reply.text)

    last = agent.last_turn
    assert last is not None
    print("its own tokens:", last.usage.total_tokens)
    print("with those below:", last.total_usage.total_tokens)
    for result in agent.history[2].tool_results:
        turn = result.meta["agent_turn"]
        kept = tr.fold(journal.stored(turn["session"]))
        print(f"{turn['session']} ({turn['end_reason']}): {kept.messages[-1].text}")


tr.run(main)
