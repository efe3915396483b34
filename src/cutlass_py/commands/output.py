"""`--json`, and what it prints."""

from __future__ import annotations

import argparse
import json
from typing import Any


def json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`, by the same words everywhere."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(value: Any) -> None:
    """One value; lists and objects over several lines."""
    print(json.dumps(value, indent=1))
