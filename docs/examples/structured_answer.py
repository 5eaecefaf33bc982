"""A turn that ends in a value: tools first, then an answer that is checked, and once corrected."""

import attrs
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call


@attrs.frozen
class Forecast:
    city: str
    degrees: float
    umbrella: bool


async def measure(city: str) -> str:
    """Read the thermometer of a city."""
    return f"{city}: 3.5 degrees, rain"


def model() -> ScriptedModel:
    """Stands for a model: it calls the tool, then answers, wrongly at first."""
    return ScriptedModel(
        [
            call("measure", city="Oslo"),
            'In Oslo? {"city": "Oslo"}',
            '{"city": "Oslo", "degrees": 3.5}',
            '{"city": "Oslo", "degrees": 3.5, "umbrella": true}',
        ]
    )


async def main() -> None:
    agent = tr.ToolAgent("weather", model=model(), tools=[measure])
    answer = await agent.structured(Forecast, "What is it like in Oslo?")
    print(answer.value)
    print("degrees:", answer.value.degrees)

    # What did not fit went back to the model, and stands in the history.
    for message in agent.history:
        if message.meta.get("structured_output") == "refused":
            print("sent back:", message.text.splitlines()[1])

    # One that never fits is an error that says so; the conversation is fine.
    agent.model = ScriptedModel(["I would rather not."] * 3)
    try:
        await agent.structured(Forecast, "And tomorrow?")
    except tr.StructuredOutputError as error:
        print(f"no answer after {error.attempts} attempts, the turn {error.end_reason.value}")
    tr.check_history(agent.history)


if __name__ == "__main__":
    trio.run(main)
