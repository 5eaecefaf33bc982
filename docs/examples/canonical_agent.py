"""The canonical small program: an agent with two hooks of its own.

It runs as it stands, without a network: a scripted model plays the model.
"""

import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call


async def get_weather(city: str) -> str:  # a plain function is a tool
    """Say what the weather is like in a city."""
    await trio.sleep(0.01)
    return {"Oslo": "snow", "Rome": "sun"}.get(city, "rain")


class WeatherAgent(tr.ToolAgent):
    @property
    def tool_runner_hooks(self) -> tr.ToolRunnerHooks:
        return tr.ToolRunnerHooks(
            before_llm_call=self._add_style_hint, after_tool_call=self._show_tools
        )

    async def _add_style_hint(
        self, runner: tr.ToolRunner, messages: tuple[tr.Message, ...]
    ) -> None:
        if runner.iteration == 0:
            runner.append_messages("Answer in one sentence.")

    async def _show_tools(self, runner: tr.ToolRunner, message: tr.Message) -> None:
        print("tools:", ", ".join(result.name for result in message.tool_results))


async def main() -> None:
    model = ScriptedModel(
        [
            [call("get_weather", city="Oslo"), call("get_weather", city="Rome")],
            "Snow in Oslo, sun in Rome.",
            [call("get_weather", city="Cairo")],
            "Rain in Cairo, of all places.",
        ]
    )
    agent = WeatherAgent(
        name="weather",
        instruction="You know the weather.",
        model=model,
        tools=[get_weather],
        params=tr.RequestParams(max_iterations=199),
        journal=tr.MemoryJournal(),
        session="s-1",
    )
    async with agent:
        reply = await agent.generate("What is the weather in Oslo and in Rome?")
        print(reply.text)
        async with agent.turn("And in Cairo?") as runner:
            async for message in runner:
                print("message:", message.text or [call.name for call in message.tool_calls])
        print("ended:", runner.end_reason.value if runner.end_reason else None)
        print("history:", len(agent.history), "messages")


if __name__ == "__main__":
    tr.run(main)
