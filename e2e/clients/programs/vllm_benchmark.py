"""vLLM's own serving benchmark, called without its engine: endpoint, then the command line's options."""

import argparse
import json
import sys

from vllm.benchmarks.serve import add_cli_args, main

parser = argparse.ArgumentParser()
add_cli_args(parser)
result = main(parser.parse_args(["--base-url", sys.argv[1], *sys.argv[2:]]))
print("\n" + json.dumps({name: result[name] for name in ("completed", "total_output_tokens", "failed")}))
