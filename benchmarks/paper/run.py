"""Run whichever rows of the paper's tables this machine can, and say what was skipped and why.

    python benchmarks/paper/run.py --coco COCO --pope POPE/output/coco --mme MME_Benchmark --out results/paper
    python benchmarks/paper/run.py --dry-run

COCO has `annotations/instances_val2014.json`, `annotations/captions_val2014.json` and the pictures in `val2014/`; POPE
is the folder of its question files; MME has one folder per subtask. `--write-configs` writes the configs anew.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coco", type=Path, help="COCO's folder")
    parser.add_argument("--pope", type=Path, help="folder of POPE's question files")
    parser.add_argument("--mme", type=Path, help="MME's folder")
    parser.add_argument("--images", type=Path, help="pictures of POPE's questions, if not in COCO's folder")
    parser.add_argument("--split", default="val2014")
    parser.add_argument("--tables", default="1,2,3,4,5", help="which tables, separated by commas")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--out", type=Path, default=Path("results/paper"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--limit", type=int, help="fewer pictures, to try it out")
    parser.add_argument("--download", action="store_true", help="fetch weights that are not here")
    parser.add_argument("--dry-run", action="store_true", help="only say what would run")
    parser.add_argument("--write-configs", action="store_true", help="write the configs anew and leave")
    arguments = parser.parse_args()

    from rudder_hf.evaluate import paper_tables as recipe

    if arguments.write_configs:
        for config in recipe.paper_configs():
            (HERE / f"{config.name}.json").write_text(config.to_json(), encoding="utf-8")
        return
    from rudder_hf.cli.common import choose_device

    images = arguments.images
    if images is None and arguments.coco is not None:
        images = arguments.coco / arguments.split
    given = {"chair": arguments.coco, "pope": arguments.pope, "mme": arguments.mme}
    machine = recipe.Machine(
        data={task: folder for task, folder in given.items() if folder is not None},
        images=images,
        split=arguments.split,
        device=choose_device(arguments.device),
        dtype=arguments.dtype,
        batch_size=arguments.batch_size,
        download=arguments.download,
        limit=arguments.limit,
    )
    tables = {int(number) for number in arguments.tables.split(",")}
    configs = [c for c in recipe.read_configs(HERE) if c.table in tables and arguments.only in c.name]
    outcomes = recipe.run_rows(configs, machine, arguments.out, dry=arguments.dry_run)
    print()
    print(recipe.summary(outcomes))


if __name__ == "__main__":
    main()
