"""Estimates of answer lengths, from recent answers that ended and answers that still run.

Answers to prompts of another length say nothing: where a load turns from essays to papers, all that ended lately are
essays. Nor are ended answers enough: while the first essays run, only short ones have ended. An answer that still runs
is at least as long as it is now (Kaplan and Meier 1958). Gateways report this to sizing; the simulator does the same.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

KEPT_S, LEAST, MOST = 120.0, 64, 2048
"""For each kind of prompt, answers that ended within `KEPT_S` count: at least the latest `LEAST`, however long ago they
ended, and at most `MOST`."""
UNKNOWN_TOKENS = 200
"""Assumed length of an answer before one to such a prompt has ended or is as long."""


class AnswerLengths:
    """Answer lengths of one gateway. Prompts are alike when their lengths, in tokens, have equally many binary
    digits."""

    def __init__(self) -> None:
        self._ended: dict[int, deque[tuple[float, int]]] = defaultdict(lambda: deque(maxlen=MOST))
        self._curves: dict[int, list[tuple[float, int]]] = {}

    def ended(self, now: float, prompt_tokens: int, answer_tokens: int) -> None:
        self._ended[prompt_tokens.bit_length()].append((now, answer_tokens))

    def look(self, now: float, running: Iterable[tuple[int, int]]) -> None:
        """Estimate again. `running`: (tokens of the prompt, tokens of the answer so far) of all requests that still
        run."""
        lengths: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for kind, ended in self._ended.items():
            while len(ended) > LEAST and ended[0][0] < now - KEPT_S:
                ended.popleft()
            lengths[kind] = [(tokens, True) for _, tokens in ended]
        for prompt_tokens, tokens in running:
            lengths[prompt_tokens.bit_length()].append((tokens, False))
        self._curves = {kind: _curve(answers) for kind, answers in lengths.items()}

    def likely(self, prompt_tokens: int, draw: float) -> int:
        """Tokens of one answer, drawn by `draw` from 0 to under 1."""
        for share, tokens in self._curves.get(prompt_tokens.bit_length(), ()):
            if draw < share:
                return tokens
        return UNKNOWN_TOKENS


def _curve(lengths: list[tuple[int, bool]]) -> list[tuple[float, int]]:
    """(share of answers that are no longer than this, tokens), ascending. Answers that already outlast the longest that
    ended are expected to double: nothing else is known of them."""
    lengths.sort()
    lasting, points, left = 1.0, [], len(lengths)
    for tokens, has_ended in lengths:
        if has_ended:
            lasting *= 1.0 - 1.0 / left
            points.append((1.0 - lasting, tokens))
        left -= 1
    longest = points[-1][1] if points else 0
    open_ended = [tokens for tokens, has_ended in lengths if not has_ended and tokens >= longest]
    if open_ended:
        points.append((1.0, max(UNKNOWN_TOKENS, 2 * sum(open_ended) // len(open_ended))))
    return points
