"""Runs every benchmark, prints what each finds, and writes all of it to a file, with the machine and the versions.

Those that train on real data run only if NESTLING_DATA says where it is.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import peers
from measuring import machine

HERE = Path(__file__).parent
NOT_BENCHMARKS = {"all.py", "measuring.py", "peers.py"}
WITH_DATA = {"folder.py", "strategies.py"}


def findings(script: Path) -> list[dict[str, Any]]:
    """What a script finds, one record a line of JSON that it prints."""
    run = subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def shown(record: dict[str, Any]) -> str:
    """A record as a line for readers."""
    figures = (f"{name} {value}" for name, value in record.items() if name not in ("question", "load"))
    return f"{record.get('question', '')}: " + ", ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    parser.add_argument("names", nargs="*", help="of scripts; all of them if none is given")
    asked = parser.parse_args()
    left_out = NOT_BENCHMARKS | (set() if "NESTLING_DATA" in os.environ else WITH_DATA)
    scripts = [own for own in sorted(HERE.glob("*.py")) if own.name not in left_out]
    chosen = [own for own in scripts if not asked.names or own.stem in asked.names]
    found: dict[str, Any] = {
        "machine": machine() | {"beside": peers.installed()},
        "started": time.strftime("%Y-%m-%d %H:%M"),
        "findings": {},
    }
    for script in chosen:
        print(f"\n{script.stem}", flush=True)
        found["findings"][script.stem] = findings(script)
        for record in found["findings"][script.stem]:
            print(f"  {shown(record)}", flush=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
