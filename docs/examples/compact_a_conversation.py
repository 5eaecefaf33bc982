"""A conversation that outgrows its model's context window, and is compacted by itself."""

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import ScriptedModel, call


async def read_file(name: str) -> str:
    """Read a file, a long one."""
    return f"{name}: " + "lorem ipsum " * 20


class Narrator:
    """Prints what is compacted."""

    def on_event(self, event: ev.Event) -> None:
        match event:
            case ev.Compacted():
                print(
                    f"  ({event.reason}: {event.replaced} messages became a summary, "
                    f"about {event.tokens_before} tokens became {event.tokens_after})"
                )
            case ev.CompactionFailed():
                print(f"  (not compacted: {event.error})")
            case _:
                pass


class OneLine:
    """A summariser: what was said and read. Without one the agent's own model is asked."""

    async def summarise(self, request: tr.SummaryRequest) -> str:
        parts: list[str] = []
        for message in request.messages:
            parts += [message.text.removeprefix("So far: ")] if message.text else []
            parts += [f"(read {call.arguments['name']})" for call in message.tool_calls]
        return "So far: " + " ".join(parts)


async def main() -> None:
    files = [[call("read_file", name=f"{letter}.txt")] for letter in "abcde"]
    agent = tr.ToolAgent(
        "reader",
        model=ScriptedModel([*files, "Five files of Latin.", "You are welcome.", "Good bye."]),
        tools=[read_file],
        summarizer=OneLine(),
        # A toy window of 500 tokens. A model with an attribute context_window says it itself.
        compaction=tr.Compaction(context_window=500, keep_turns=2, keep_steps=2),
        observers=[Narrator()],
        journal=tr.MemoryJournal(),
        session="reading",
    )
    async with agent:
        for text in ("Read the five files.", "Thank you.", "That is all."):
            print("user:", text)
            print("agent:", (await agent.generate(text)).text)

        # The history is what the next model call is sent: valid, and shorter than what was said.
        tr.check_history(agent.history)
        print(f"{len(agent.history)} messages, the first: {agent.history[0].text!r}")

        # Whenever you like, at any size: here all but the newest turn.
        await agent.compact(keep_turns=1)
        print(f"{len(agent.history)} messages, the first: {agent.history[0].text!r}")


if __name__ == "__main__":
    tr.run(main)
