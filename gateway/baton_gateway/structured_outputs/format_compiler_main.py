"""The process that makes grammars of shapes for a gateway: bounded in memory, killed when it takes too long.

The compiler is native code that reads what strangers wrote: should it hang or crash, the gateway stays.
"""

from __future__ import annotations

import msgspec

from baton_gateway.helper_processes.helper_main import answer_questions
from baton_gateway.structured_outputs.grammar_builder import answers_of
from baton_gateway.structured_outputs.output_format import OutputFormat

MAX_MEMORY_BYTES = 1 << 30


def main() -> None:
    """Answer until stdin ends."""
    shapes, encode = msgspec.json.Decoder(OutputFormat), msgspec.json.Encoder().encode
    answer_questions(lambda body: map(encode, answers_of(shapes.decode(body))), MAX_MEMORY_BYTES)


if __name__ == "__main__":
    main()
