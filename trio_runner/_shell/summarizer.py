"""`ModelSummarizer`: has a model write the summary.

What may live here: the default `Summarizer` and its words.
"""

from __future__ import annotations

from typing import Final

import trio_runner._core.values as v
from trio_runner._core.compaction_plan import check_count
from trio_runner._core.errors import CompactionError, ModelReplyError
from trio_runner._core.normalise import normalise_reply
from trio_runner._core.params import DEFAULT_PARAMS, RequestParams
from trio_runner._core.transcript import transcript
from trio_runner._core.validity import has_content
from trio_runner._shell.limits import before_model_call, scopes_around, usage_names
from trio_runner.abc import Model, ModelRequest, SummaryRequest

#: What `ModelSummarizer` asks for, unless it is given an instruction.
SUMMARY_INSTRUCTION: Final = (
    "You summarise the older part of a conversation between a user and an assistant that calls "
    "tools. The summary takes its place: the assistant goes on with the summary and the newest "
    "messages, and does not see the rest again. Keep what it needs: what the user wants and has "
    "decided, names, numbers, paths and identifiers as they were written, what was done and what "
    "came of it, what failed, and what is still open. If there is a summary of what was before, "
    "tell its content again. Invent nothing. Answer with the summary alone."
)
#: Words that a token is worth, of a hundred.
_WORDS_PER_HUNDRED_TOKENS: Final = 75
_USABLE: Final = (v.StopReason.END_TURN, v.StopReason.STOP_SEQUENCE, None)


def _drop(text: str) -> None:
    """Take a piece of a reply that nobody watches."""


class ModelSummarizer:
    """Asks a model once, without tools, for a summary of a transcript.

    Args:
      model: any model; a small one will often do.
      instruction: the system prompt.
      params: for the model call.
      heading: stands in front of the summary, so that the model knows it for one.
      max_part_characters: of each message, call and result the model is shown so many.
    """

    def __init__(
        self,
        model: Model,
        *,
        instruction: str = SUMMARY_INSTRUCTION,
        params: RequestParams | None = None,
        heading: str = "Summary of the conversation so far:",
        max_part_characters: int = 8_000,
    ) -> None:
        if not callable(getattr(model, "reply", None)):
            raise TypeError(f"model is {model!r}; expected an object with 'async def reply'")
        check_count("max_part_characters", max_part_characters, 100)
        self.model: Model = model
        #: Whose ``model`` has the name that a price may stand under.
        self._priced: object = self
        self._instruction = instruction
        self._params = (params if params is not None else RequestParams()).over(DEFAULT_PARAMS)
        self._heading = heading
        self._max_part_characters = max_part_characters

    @classmethod
    def of_agent(cls, agent: Model) -> ModelSummarizer:
        """One that asks an agent's own model, by the agent's ``reply``."""
        summarizer = cls(agent)
        summarizer._priced = agent
        return summarizer

    async def summarise(self, request: SummaryRequest) -> v.Message:
        """The summary, a user message that has the usage of the call. Checkpoint: as the model.

        The call counts in the limit scopes around, as any call of a model.

        Raises:
          CompactionError: a scope around has no model call left, or no tokens.
          ModelReplyError: the model answered with no text, with calls, or not to the end.
        """
        words = max(1, request.target_tokens * _WORDS_PER_HUNDRED_TOKENS // 100)
        text = transcript(request.messages, self._max_part_characters)
        question = v.Message.user(
            f"Summarise this conversation in at most {words} words.\n\n"
            f"<conversation>\n{text}\n</conversation>"
        )
        asked = ModelRequest((question,), (question,), (), self._params, self._instruction)
        scopes = scopes_around()
        if (limit := before_model_call(scopes, usage_names(self._priced))) is not None:
            raise CompactionError(f"{limit}, so the model is not asked")
        for scope in scopes:
            scope.take_model_calls()
        raw = await self.model.reply(asked, _drop)
        reply = normalise_reply(raw, frozenset())
        for scope in scopes:
            scope.add(reply.usage, usage_names(self._priced, reply))
        if reply.stop_reason not in _USABLE:
            raise ModelReplyError(
                f"the summary ended with stop reason {reply.stop_reason!r}; expected a whole one"
            )
        if not has_content(raw.content) or not reply.text.strip():
            raise ModelReplyError("the model answered with no text; expected a summary")
        said = f"{self._heading}\n{reply.text}" if self._heading else reply.text
        return v.make_message("user", (v.TextContent(said),), (), (), None, reply.usage, {})
