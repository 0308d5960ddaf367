"""`rudder calibrate` and `rudder compare`: settings chosen on some images, and checked or compared on others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import common

if TYPE_CHECKING:
    from ..calibrate import CalibrationOptions, Outcome
    from ..runtime.models import LoadedModel

EXAMPLES = {
    "calibrate": (
        "rudder calibrate --out calibration",
        "rudder calibrate --model ID --data coco --split val2014 --out cal --dry-run",
        "rudder calibrate --model ID --data coco --split val2014 --out cal",
        "rudder calibrate --model ID --data photos --out cal",
        "rudder calibrate --strengths 0 --contrast 0.4,0.6,0.8 --out calibration",
    ),
    "compare": (
        "rudder compare --out comparison",
        "rudder compare --methods vanilla,rudder,vcd --decodings greedy --out quick",
        "rudder compare --model ID --data coco --split val2014 --out comparison",
    ),
}


def calibrate_command(
    out: common.OutOption,
    model: common.ModelOption = None,
    data: common.DataOption = None,
    split: common.SplitOption = None,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Number of images to choose on.", show_default="100, scenes 200")
    ] = None,
    check_limit: Annotated[int, typer.Option(min=0, help="Number of other images to check the choice on.")] = 200,
    objective: Annotated[
        Literal["paper", "f1", "grounding"] | None,
        typer.Option(
            metavar="NAME",
            help="Objective within the limits: paper, the least CHAIR without loss of F1; f1; or grounding.",
            show_default="paper; grounding without annotations",
        ),
    ] = None,
    recall_floor: Annotated[float, typer.Option(help="Lowest recall, as a share of vanilla's.")] = 0.95,
    layers: Annotated[str | None, typer.Option(help="Layers to try, such as 20,24,28; else by a sweep.")] = None,
    strengths: Annotated[
        str | None,
        typer.Option(help="alpha_max relative to hidden states, such as 0.1,0.3; 0 tries --contrast without a push."),
    ] = None,
    k: Annotated[str | None, typer.Option(help="Sensitivities of the gate, such as 2,5,8.")] = None,
    mode: common.ModeOption = None,
    contrast: Annotated[
        str | None,
        typer.Option(help="Not in the paper: image-value contrasts, such as 0,0.4,0.8, alone and with each push."),
    ] = None,
    prompt: common.PromptOption = None,
    max_new_tokens: common.MaxNewTokensOption = None,
    batch_size: common.BatchSizeOption = 24,
    device: common.DeviceOption = "auto",
    dtype: common.DtypeOption = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Time one batch, say how long everything takes, and write nothing.")
    ] = False,
) -> None:
    """Find RUDDER's settings for a model: the least CHAIR at 95 % of vanilla's recall and no loss of F1.

    Settings count as calibrated if held-out images show that CHAIR is lower than vanilla's, and lower than that of
    vanilla's captions truncated to the same recall (95 % intervals below 0, paired p at most 0.05), that F1 is not
    significantly lower, and that recall keeps the floor.

    Writes a settings repository with a report, which can be loaded and pushed. Settings that do not count as
    calibrated are written too, and say so. If it is interrupted, repeat the command. A larger grid generates only what
    is new.
    """
    given = dict(locals())
    with common.refusing_bad_input():
        from ..calibrate.run import calibrate, check_runs, find_data, time_one_batch
        from ..evaluate.tasks import DataOptions
        from ..runtime.environment import process_device, this_process

        process = this_process()
        if not dry_run:
            check_runs(out)
        source = DataOptions(data, split=split, prompt=prompt)
        found = find_data(source, limit or (200 if data is None else 100), check_limit)
        wanted = _options(given, found.labelled)

        from ..runtime.models import load_model
        from ..runtime.report import ProgressBar

        loaded = load_model(model, dtype, process_device(common.choose_device(device), process))
    if dry_run:
        with common.reporting_failure():
            typer.echo(time_one_batch(loaded, found, wanted))
        common.next_steps("the same command without --dry-run")
        return
    with common.reporting_failure(), ProgressBar(shown=process.rank == 0) as bar:
        outcome = calibrate(loaded, found, out, wanted, process, bar)
    if process.rank == 0:
        _finish(outcome, out, loaded)


def _options(given: dict[str, Any], labelled: bool) -> CalibrationOptions:
    from ..calibrate import CalibrationOptions, Grid, Rule
    from ..evaluate.run import RunOptions

    numbers: dict[str, Any] = {
        name: common.parse_numbers(f"--{name}", given[name]) for name in ("strengths", "k", "contrast") if given[name]
    }
    if given["mode"] == "add" and given["k"]:
        raise ValueError("--k is of the gate, which --mode add does not have: leave one of them out.")
    return CalibrationOptions(
        grid=Grid(**numbers, modes=(given["mode"] or "beta",)),
        layers=None if given["layers"] is None else common.parse_numbers("--layers", given["layers"], int),  # type: ignore[arg-type]
        rule=Rule(given["objective"] or ("paper" if labelled else "grounding"), given["recall_floor"]),
        max_new_tokens=given["max_new_tokens"],
        run=RunOptions(given["batch_size"], command=common.command_line()),
    )


def _finish(outcome: Outcome, out: Path, loaded: LoadedModel) -> None:
    """Write the results and say what they are; without a choice the command has failed."""
    with common.reporting_failure():
        from ..calibrate.report import outcome_lines, save_outcome

        commit = loaded.revision if not loaded.revision.startswith(("files-", "unknown")) else None
        # The base itself, also where --model named RUDDER settings for it, or one of the embedded models.
        folder = save_outcome(outcome, out, loaded.model.name_or_path, commit)
    for line in outcome_lines(outcome):
        typer.echo(line)
    typer.echo(f"Written to {folder}; why, and all numbers: {folder / 'report.md'}")
    if outcome.best is None:
        common.next_steps("more images (--limit)", "other layers (--layers) or strengths (--strengths)")
        raise typer.Exit(common.FAILED)
    refused = outcome.record["refusal"]
    share = "more images to choose on and to check with" if refused else f"rudder push {folder} ORG/NAME"
    common.next_steps(f"rudder generate --model {folder}", share)


def compare_command(
    out: common.OutOption,
    model: common.ModelOption = None,
    data: Annotated[Path | None, typer.Option(help="COCO's folder.", show_default="the embedded scenes")] = None,
    split: common.SplitOption = None,
    methods: common.VanillaMethodsOption = "all",
    decodings: Annotated[str, typer.Option(help="Decodings by commas: greedy, beam, nucleus.")] = "greedy",
    limit: Annotated[int, typer.Option(min=1, help="Images to evaluate captions on.")] = 500,
    pope_limit: Annotated[int, typer.Option(min=0, help="Images that yes/no questions are asked about.")] = 40,
    tune_limit: Annotated[int, typer.Option(min=2, help="Calibration images that settings are chosen on.")] = 80,
    max_new_tokens: common.MaxNewTokensOption = None,
    batch_size: common.BatchSizeOption = 50,
    seed: common.SeedOption = 0,
    device: common.DeviceOption = "auto",
    dtype: common.DtypeOption = "auto",
) -> None:
    """Tune every method on the same calibration images, then compare quality and cost on others.

    Each method chooses among the same number of settings by the rule of rudder calibrate. Writes a result for each
    decoding and one page of tables. If it is interrupted, repeat the command. With more methods or decodings it
    generates only what is new.
    """
    with common.refusing_bad_input():
        from ..benchmark.costs import CostSettings
        from ..calibrate import Rule
        from ..compare.run import CompareOptions, check_comparison_folder, compare, find_comparison_data
        from ..evaluate.methods import parse_names
        from ..evaluate.run import RunOptions
        from ..evaluate.tasks import DataOptions
        from ..runtime.models import load_model
        from ..runtime.report import ProgressBar

        options = CompareOptions(
            methods=tuple(parse_names(methods)),
            decodings=tuple(dict.fromkeys(name.strip() for name in decodings.split(","))),
            limit=limit,
            pope_limit=pope_limit,
            tune_limit=tune_limit,
            rule=Rule(seed=seed),
            max_new_tokens=max_new_tokens,
            costs=CostSettings(rounds=8, seed=seed),
            run=RunOptions(batch_size, seed, command=common.command_line()),
        )
        check_comparison_folder(out)
        found = find_comparison_data(DataOptions(data, split=split, seed=seed), options)
        loaded = load_model(model, dtype, common.choose_device(device))
    with common.reporting_failure(), ProgressBar() as bar:
        results = compare(loaded, found, out, options, bar)
    for result in results.values():
        common.print_result(result)
    typer.echo(f"Intervals, controls and all metrics: {out / 'table.md'}")
    name, result = next(iter(results.items()))
    if len(result.methods) == 1:
        common.next_steps("more images to choose on (--tune-limit)", "other --methods")
    else:
        common.next_steps(
            f"rudder score {out / name}:vanilla {out / name}:{result.methods[-1].name}, for any two methods"
        )
