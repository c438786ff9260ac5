"""The helper process that compiles output formats: bounded in memory, killed when it takes too long.

The compiler is native code that reads untrusted definitions. If it hangs or crashes, the gateway survives.
"""

from __future__ import annotations

import msgspec

from baton_gateway.helper_processes.helper_main import answer_questions
from baton_gateway.structured_outputs.grammar_builder import compile_format
from baton_gateway.structured_outputs.output_format import OutputFormat

MAX_MEMORY_BYTES = 1 << 30


def main() -> None:
    """Answer questions until stdin ends."""
    decoder, encode = msgspec.json.Decoder(OutputFormat), msgspec.json.Encoder().encode
    answer_questions(lambda body: map(encode, compile_format(decoder.decode(body))), MAX_MEMORY_BYTES)


if __name__ == "__main__":
    main()
