"""A turn that is cancelled while its tools run, and gone on with afterwards."""

import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call


async def quick(number: int) -> str:
    """Is through at once."""
    await trio.lowlevel.checkpoint()
    return f"result {number}"


async def slow() -> str:
    """Takes an hour."""
    await trio.sleep(3600)
    return "never seen"


async def main() -> None:
    model = ScriptedModel(
        [
            [call("quick", number=1), call("slow"), call("quick", number=2)],
            "Two results are here; what the third tool did is not known.",
        ]
    )
    agent = tr.ToolAgent("worker", model=model, tools=[quick, slow])

    with trio.move_on_after(0.2) as scope:
        await agent.generate("Run all three.")
    assert scope.cancelled_caught

    # The turn is over, its history is valid, and what had finished is there.
    tr.check_history(agent.history)
    last = agent.last_turn
    assert last is not None
    print("ended:", last.end_reason.value)
    for result in agent.history[-1].tool_results:
        print(f"  {result.name}: {result.status.value}: {result.text}")

    # Go on: the model is asked again, and no tool runs twice.
    reply = await agent.resume()
    print(reply.text)


if __name__ == "__main__":
    tr.run(main)
