"""The constraints of one row: which tokens may come next. Its state is a matcher and a thought, both rebuilt from ids.

A grammar begins after the thought. While the opening mark may still come, both the mark and the answer are allowed; if
the whole mark is drawn, the answer begins anew after the thought. A few blanks may come between thought and answer:
models are used to a blank line there, which no grammar knows. Stop ids are allowed where the grammar may end, and
nowhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from baton_engine.grammars.answer_matcher import AnswerMatcher, CompiledGrammar
from baton_engine.grammars.blank_runs import TEXT
from baton_engine.grammars.thought_tracker import ThoughtStage, ThoughtTracker
from baton_engine.grammars.vocabulary import MAX_LEAD, Vocabulary, Words, bits_of, ids_in, spelling_begins
from baton_kernels.sampling.token_mask import WORD_BITS, looking
from baton_wire.messages.values import SamplingParams


class Allowance(enum.Enum):
    """The rule for a row's next token."""

    ANYTHING = "anything"
    TEXT = "text"
    """A thought before a grammar: any token that ends nothing."""
    FORCED = "forced"
    MATCHER = "matcher"
    FAILED = "failed"
    """No token: the matcher gave up."""


@dataclass(frozen=True, slots=True)
class EndIds:
    """The ids that end one row's answer, as words to mix into its masks."""

    ids: tuple[int, ...]
    text: Words
    """[W]: every known id that ends nothing."""
    places: npt.NDArray[np.int64]
    """The few words of a mask in which other ids or marks have bits."""
    others: Words
    """The bits of these other ids, for each word of `places`."""

    @staticmethod
    def of(vocabulary: Vocabulary, stop_ids: tuple[int, ...]) -> EndIds:
        ids = tuple(token for token in stop_ids if token < vocabulary.words * WORD_BITS)
        ends = bits_of((*ids, *vocabulary.end_ids), vocabulary.words)
        text = vocabulary.known & ~ends
        others = np.bitwise_not(text) | vocabulary.marks
        places = np.flatnonzero(others)
        return EndIds(ids, text, places, others[places])

    def are_in(self, masks: Words) -> npt.NDArray[np.bool_]:
        """[R]: the masks of [R, W] that hold an id that is no text, or a mark, and so have to be completed."""
        bits = masks.take(self.places, axis=1) & self.others
        are_held: npt.NDArray[np.bool_] = np.bitwise_or.reduce(bits, axis=1) != 0
        return are_held

    def looking(self, masks: Words) -> Callable[[], bool]:
        """A check whether any of masks [R, W] holds such an id when it is called: at every draw, and nearly never."""
        return looking(masks, self.places, self.others)


class ConstrainedRow:
    """A row with a grammar, a thought, or both.

    A plain row, with a grammar alone, is the common case and costs a token nothing but its matcher. The two kinds of
    row share the answer, its blanks, its end and the completion of its masks; they differ in `take` and `allowance`.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        outputs: tuple[int, ...],
        vocabulary: Vocabulary,
        compiled: CompiledGrammar | None,
        ends: EndIds,
    ) -> None:
        """`compiled`: None without a grammar. `ends`: the end ids of the sampling's stop ids, shared among rows. Raises
        nothing: a grammar that `outputs` do not follow is `Allowance.FAILED`.
        """
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._min_tokens = sampling.min_tokens
        self.ends = ends
        self._thought = None if sampling.thought is None else ThoughtTracker(sampling.thought)
        self.is_plain = self._thought is None and compiled is not None
        """True when a grammar alone binds the row, from the first token to the end."""
        max_blanks = None if sampling.grammar is None else sampling.grammar.max_blanks
        self._counts_blanks = max_blanks is not None
        self._max_blanks = max_blanks or 0
        self._blank_runs, self._blank_ids = vocabulary.blank_runs, vocabulary.blank_ids
        self._blanks = 0
        """The state of `blank_runs`."""
        self.are_blanks_over = False
        """True after the most blanks that may follow each other: the next mask needs `forbid_blanks`."""
        self.is_mask_due = True
        """True when the matcher has advanced since its mask was computed. The caller that computes it sets it to
        False."""
        self._lead_left = 0
        """Blanks that may still come between a thought and the answer."""
        self._index = 0
        self.is_over = False
        """True when the answer has ended."""
        self._failure: str | None = None
        self._answer: AnswerMatcher | None = None
        """None without a grammar, and inside a thought."""
        self._begin_answer()
        self._consume: Callable[[int], object] | None = self._answer.take if self.is_plain and self._answer else None
        """Takes a token of the answer; plain rows only."""
        for token in outputs:
            self.take(token)

    @property
    def words(self) -> int:
        """Width of the row's masks."""
        return self._vocabulary.words

    @property
    def matcher(self) -> LLMatcher | None:
        """The answer's matcher; None without a grammar, and inside a thought."""
        if self._answer is None:
            return None
        matcher = self._answer.matcher
        if self._consume is not None:
            self._consume = matcher.consume_token  # called at every token: from now on without a detour
        return matcher

    @property
    def first_mask(self) -> Words | None:
        """[W]: the matcher's part of the next mask if it is known without a matcher, at the beginning of an answer."""
        return None if self._answer is None else self._answer.first_mask

    @property
    def is_free(self) -> bool:
        """True when nothing constrains this row any more."""
        return self.is_over or (self._compiled is None and self._stage is ThoughtStage.OVER)

    @property
    def failure(self) -> str | None:
        """Reason why no token may follow, without any text of the grammar; None: some may."""
        if self._failure is None and self._answer is not None and (error := self._answer.error) is not None:
            # Text of the answer is in quotation marks.
            what = error.partition("\n")[0].partition('"')[0]
            self._failure = f"the matcher gave up: {what}"
        return self._failure

    @property
    def allowance(self) -> Allowance:
        if self.is_over:
            return Allowance.ANYTHING
        if self.is_plain:
            return Allowance.MATCHER if self.failure is None else Allowance.FAILED
        if self._forced is not None:
            return Allowance.FORCED
        if self._compiled is None:
            return Allowance.ANYTHING
        if self._stage is ThoughtStage.INSIDE:
            return Allowance.TEXT
        return Allowance.MATCHER if self.failure is None else Allowance.FAILED

    def take(self, token: int) -> bool:
        """Take the token that the row drew. Returns True when nothing constrains the row any more."""
        self._index += 1
        if self._consume is None:
            return self._take_with_thought(token)
        if self.is_over or token in self.ends.ids:
            self.is_over = True
            return True
        if not self._counts_blanks or not self._goes_on_with_blanks(token):
            self._consume(token)
            self.is_mask_due = True
        return False

    def _take_with_thought(self, token: int) -> bool:
        if self.is_free:
            return True
        before = self._stage
        if self._thought is not None:
            self._thought.take(token)
        if before is ThoughtStage.INSIDE:
            if self._stage is ThoughtStage.OVER:
                self._begin_answer()
                self._lead_left = 0 if self._answer is None else MAX_LEAD
        elif self._stage is ThoughtStage.INSIDE:
            self._answer = None
        else:
            self._take_answer(token)
        return self.is_free

    def forbid_blanks(self, words: Words) -> None:
        """Remove tokens that begin with a blank from the matcher's mask [W]. In JSON something else may always follow;
        if the vocabulary has no token for it, blanks go on.
        """
        others = words & self._vocabulary.unblank
        if others.any():
            words[:] = others

    def fill(self, words: Words) -> None:
        """Write the tokens that may come next into [W]. If the matcher decides, its part is there already."""
        if (forced := self._forced) is not None:
            words[:] = 0
            _allow(words, forced)
        elif self._stage is ThoughtStage.INSIDE:
            words[:] = self.ends.text
        elif not self.is_over and self.failure is None:
            self._finish(words)

    @property
    def _stage(self) -> ThoughtStage:
        return ThoughtStage.OVER if self._thought is None else self._thought.stage

    @property
    def _forced(self) -> int | None:
        """The only id that may come next, while a mark has to be written to its end; None: several may."""
        if self._thought is None or self.is_over:
            return None
        is_opening = self._thought.opening is not None and self._compiled is not None and self._answer is None
        return self._thought.opening if is_opening else self._thought.forced

    def _begin_answer(self) -> None:
        self._answer = None if self._compiled is None else AnswerMatcher(self._compiled)
        self._blanks = 0
        self.are_blanks_over = False

    def _take_answer(self, token: int) -> None:
        """Take a token of the answer, which may still belong to the mark that opens a thought."""
        if token in self.ends.ids:
            self.is_over = True
        elif self._lead_left and self._is_lead(token):
            self._lead_left -= self._vocabulary.lead_sizes[token]
        elif self._answer is None:
            if self._compiled is not None and self._stage is not ThoughtStage.OPENING:
                self._failure = "the row left the mark that opens its thought"
        elif self._stage is ThoughtStage.OPENING and self._answer.matcher.try_consume_tokens([token]) == 0:
            self._answer = None  # only the mark goes on
        else:
            goes_on = self._counts_blanks and self._goes_on_with_blanks(token)
            if self._stage is not ThoughtStage.OPENING and not goes_on:
                self._answer.take(token)
                self.is_mask_due = True

    def _is_lead(self, token: int) -> bool:
        """Return True if a token is a blank before the answer; one with which the answer may begin belongs to it."""
        begins = self._compiled is None or bool(self._compiled.first[token // WORD_BITS] >> (token % WORD_BITS) & 1)
        if begins or self._vocabulary.lead_sizes.get(token, MAX_LEAD + 1) > self._lead_left:
            self._lead_left = 0
        return self._lead_left > 0

    def _goes_on_with_blanks(self, token: int) -> bool:
        """Count the token's blanks. True when they continue an indentation, which is endless for the matcher. So the
        matcher does not consume them, and its last mask stays valid.
        """
        before = self._blanks
        self._blanks = after = self._blank_runs[token][before]
        self.are_blanks_over = self._max_blanks <= after < TEXT
        if not 0 < before < TEXT or token not in self._blank_ids:
            return False
        self.is_mask_due = self.is_mask_due or self.are_blanks_over
        return True

    def _finish(self, words: Words) -> None:
        """Complete the matcher's mask: the row's stop ids instead of the vocabulary's own ends, and the opening
        mark."""
        end = self._vocabulary.end_ids[0]
        leaves_some = True
        if is_special := self.ends.are_in(words[np.newaxis]).item():
            self._spell_marks(words)
        may_end = bool(words.item(end // WORD_BITS) >> (end % WORD_BITS) & 1)
        if is_special:
            np.bitwise_and(words, self.ends.text, out=words)
            leaves_some = bool(words.any())
        if self._thought is not None and self._thought.opening is not None:
            _allow(words, self._thought.opening)
            leaves_some = True
        if self._lead_left:
            words |= self._vocabulary.leads[self._lead_left]
            leaves_some = True
        if may_end and (self._index >= self._min_tokens or not leaves_some):
            for token in self.ends.ids:
                _allow(words, token)
        elif not leaves_some:
            self._failure = "the grammar leaves no token"

    def _spell_marks(self, words: Words) -> None:
        """Allow the ids of texts that read like a mark. If the only text that may follow does, a matcher allows the
        mark instead, and then refuses it or ends the answer too early.
        """
        matcher, vocabulary = self.matcher, self._vocabulary
        if matcher is None:
            return
        for mark in ids_in(words & vocabulary.marks):
            is_meant = matcher.is_accepting() if mark in vocabulary.end_ids else matcher.validate_tokens([mark]) == 1
            if is_meant:
                continue
            words[mark // WORD_BITS] &= ~np.uint32(1 << (mark % WORD_BITS))
            for token in spelling_begins(vocabulary, mark):
                if matcher.validate_tokens([token]) == 1:
                    _allow(words, token)


def _allow(words: Words, token: int) -> None:
    words[token // WORD_BITS] |= np.uint32(1 << (token % WORD_BITS))
