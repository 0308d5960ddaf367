"""Engines in this process, and whether they answer as plain transformers does."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from transformers import AutoProcessor

from rudder_hf import RudderConfig, write_repo
from tests.vllm.cases import OVERRIDES, Case, Plain, make_cases, second_turns
from tests.vllm.checkpoints import ADAPTER, CHECKPOINTS, MERGED

SETTINGS: dict[str, Any] = {"layer": 2, "alpha_max": 24.0, "k": 3.0}
# Few rows and small blocks (the least that attention on a CPU takes): more requests than slots, and full blocks.
_COMMON: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "block_size": 32,
    "enforce_eager": True,
    "model_impl": "transformers",
    "enable_prefix_caching": False,
    "distributed_executor_backend": "uni",
    "disable_log_stats": False,
}
_NATIVE = {"model_impl": "vllm"}
_CONTROLS = "tests.vllm.controls."


@dataclass(frozen=True)
class Configuration:
    """One way to run vLLM."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)  # of the engine, beside the common ones
    settings: dict[str, Any] = field(default_factory=dict)  # of RUDDER, beside the common ones
    checkpoint: str = "llava"
    rounds: int = 1  # 3 for the prefix cache: prompts again, with other settings, then follow-up questions
    proof: tuple[str, ...] = ()  # metrics of vLLM that have to be above zero, so that what is tested did happen
    stored: bool = False  # whether the engine reads its settings from a repository; it is given the strength beside it
    control: bool = False  # whether it is broken on purpose and has to give wrong answers
    requests: tuple[int, int] = (26, 0)  # their number, and the seed that they are drawn with
    images: int | None = None  # number of different images; None for one of each request's own
    ahead: bool = False  # whether the scheduler runs ahead of the model, which vLLM switches off on a CPU
    adapter: bool = False  # whether the requests use a LoRA adapter; on a CPU vLLM applies it to the whole batch

    def cases(self, words: Sequence[str]) -> list[Case]:
        """The requests of its first round."""
        count, seed = self.requests
        return make_cases(words, count, seed, CHECKPOINTS[self.checkpoint].placeholder, self.images)


_FORTY = (40, 30)
_CACHE = {"enable_prefix_caching": True}
# 12 blocks of 32 tokens hold about four of the eight requests that may run.
_SCARCE = {"num_gpu_blocks_override": 12}
# Compiled: vLLM 0.32 on a CPU skips the warm-up of eager models, without which its second stage has no buffers.
_STAGES = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp", "enforce_eager": False}
_PREEMPTED = ("vllm:num_preemptions",)
_HITS = ("vllm:prefix_cache_hits",)
CONFIGURATIONS: dict[str, Configuration] = {
    configuration.name: configuration
    for configuration in (
        Configuration("eager"),
        Configuration("settings-repository", stored=True),
        Configuration("chunked-prefill", {"max_num_batched_tokens": 24}),
        Configuration("preemption", _SCARCE, proof=_PREEMPTED),
        Configuration("prefix-caching", _CACHE, rounds=3, proof=_HITS),
        Configuration(
            "prefix-caching-preemption",
            {**_CACHE, **_SCARCE, "max_num_batched_tokens": 40},
            rounds=3,
            proof=(*_HITS, *_PREEMPTED),
        ),
        # An encoder cache of 24 tokens holds one of the three images, all of which may be in the prefix cache.
        Configuration(
            "repeated-images-preemption",
            {**_CACHE, **_SCARCE, "max_num_batched_tokens": 24},
            rounds=3,
            proof=(*_HITS, *_PREEMPTED),
            requests=_FORTY,
            images=3,
        ),
        Configuration(
            "async-scheduling",
            {**_CACHE, "max_num_batched_tokens": 64},
            rounds=3,
            proof=_HITS,
            requests=_FORTY,
            ahead=True,
        ),
        Configuration(
            "async-scheduling-preemption",
            {**_CACHE, **_SCARCE},
            proof=_PREEMPTED,
            requests=_FORTY,
            images=5,
            ahead=True,
        ),
        Configuration(
            "lora",
            {**_NATIVE, **_CACHE, "enable_lora": True, "max_lora_rank": 8},
            requests=_FORTY,
            adapter=True,
        ),
        Configuration("text-span-norm-pool", _CACHE, {"span": "text", "pool": "norm"}, rounds=3, proof=_HITS),
        Configuration("compiled", {"enforce_eager": False}),
        Configuration("native-llava", _NATIVE),
        Configuration("native-llava-first-layer", _NATIVE, {"layer": 0}),
        Configuration("native-llava-compiled", {**_NATIVE, **_CACHE, "enforce_eager": False}, rounds=3, proof=_HITS),
        Configuration("qwen2.5-vl", checkpoint="qwen2_5_vl"),
        Configuration("native-qwen2.5-vl", _NATIVE, checkpoint="qwen2_5_vl"),
        Configuration("tensor-parallel-2", {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
        Configuration("pipeline-parallel-2", _STAGES),
        Configuration("pipeline-parallel-2-first-stage", {**_STAGES, **_CACHE}, {"layer": 1}, rounds=3, proof=_HITS),
        Configuration(
            "native-tensor-parallel-2",
            {**_NATIVE, "tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
        ),
        Configuration(
            "native-pipeline-parallel-2",
            {**_NATIVE, **_STAGES},
        ),
        Configuration("control-by-row", {"worker_cls": _CONTROLS + "ByRowWorker"}, control=True),
        Configuration(
            "control-by-query-length",
            {"worker_cls": _CONTROLS + "ByQueryLengthWorker", "max_num_batched_tokens": 24},
            control=True,
        ),
        Configuration(
            "control-no-block-sums",
            {**_CACHE, "worker_cls": _CONTROLS + "NoBlockSumsWorker"},
            rounds=3,
            control=True,
        ),
        Configuration(
            "control-shared-blocks",
            {**_CACHE, "scheduler_cls": _CONTROLS + "SharedBlocksScheduler"},
            rounds=3,
            control=True,
        ),
    )
}


@contextmanager
def running_ahead() -> Iterator[None]:
    """Switch on asynchronous scheduling, after vLLM has switched it off for CPUs."""
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config

    def check(platform: Any, vllm_config: Any) -> None:
        stock(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    with patch.object(CpuPlatform, "check_and_update_config", classmethod(check)):
        yield


@contextmanager
def engine(folder: Path, options: dict[str, Any], rudder: dict[str, Any] | None) -> Iterator[Any]:
    """A vLLM engine, shut down at the end."""
    from vllm import LLM

    additional = {} if rudder is None else {"additional_config": {"rudder": rudder}}
    llm = LLM(model=str(folder), **{**_COMMON, **options, **additional})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def prompt(case: Case) -> dict[str, Any]:
    """A case as vLLM takes it."""
    return {"prompt": case.text} | ({} if case.image is None else {"multi_modal_data": {"image": case.image}})


def params(case: Case) -> Any:
    """Its parameters: greedy, of a fixed length."""
    from vllm import SamplingParams

    extra = None if case.rudder is None else {"rudder": case.rudder}
    return SamplingParams(temperature=0.0, max_tokens=case.length, ignore_eos=True, extra_args=extra)


def answers(llm: Any, cases: Sequence[Case], adapter: Path | None = None) -> list[list[int]]:
    """What the engine answers, all cases at once, with the adapter if there is one."""
    lora = None
    if adapter is not None:
        from vllm.lora.request import LoRARequest

        lora = LoRARequest("adapter", 1, str(adapter))
    prompts = [prompt(case) for case in cases]
    outputs = llm.generate(prompts, [params(case) for case in cases], use_tqdm=False, lora_request=lora)
    return [list(output.outputs[0].token_ids) for output in outputs]


class Expected:
    """Answers of plain transformers, kept in a file.

    They are made in another process than engines run in: vLLM's transformers back end changes classes of transformers.

    Args:
        folder: The checkpoint.
        settings: RUDDER's settings of the engine.
        store: The file.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], store: Path) -> None:
        self.folder = folder
        self.settings = settings
        self.store = store
        self.known: dict[str, list[list[int]]] = json.loads(store.read_text()) if store.exists() else {}
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self._plain: Plain | None = None

    @property
    def plain(self) -> Plain:
        """Plain transformers, loaded when it is first asked."""
        if self._plain is None:
            self._plain = Plain(self.folder, RudderConfig(**self.settings))
        return self._plain

    def answers(self, cases: Sequence[Case]) -> list[list[int]]:
        """The answers to all cases."""
        key = repr((self.folder.name, sorted(self.settings.items()), list(cases)))
        if key not in self.known:
            self.known[key] = self.plain.answers(cases)
            self.store.write_text(json.dumps(self.known))
        return self.known[key]


def rounds_of(configuration: Configuration, cases: Sequence[Case], expected: Expected) -> list[list[Case]]:
    """The cases of each round."""
    rounds = [list(cases)]
    if configuration.rounds > 1:
        # Two requests in a row have the same prompt, so that one may begin behind blocks that the other is filling.
        rounds.append(
            [
                replace(cases[number // 2], rudder=OVERRIDES[(number + 1) % len(OVERRIDES)])
                for number in range(len(cases))
            ]
        )
        tokenizer = expected.processor.tokenizer
        texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in expected.answers(cases)]
        rounds.append(second_turns(cases, texts))
    return rounds


@dataclass
class Wanted:
    """What a configuration is to answer."""

    rounds: list[list[Case]]
    answers: list[list[list[int]]]
    unsteered: list[list[list[int]]]  # what the answers would be without RUDDER


def wanted(configuration: Configuration, folder: Path, cases: Sequence[Case], store: Path) -> Wanted:
    """Ask plain transformers, or the file."""
    settings = {**SETTINGS, **configuration.settings}
    expected = Expected(folder / MERGED if configuration.adapter else folder, settings, store)
    rounds = rounds_of(configuration, cases, expected)
    unsteered = [expected.answers([replace(case, rudder=False) for case in batch]) for batch in rounds]
    right = [expected.answers(batch) for batch in rounds]
    return Wanted(rounds, right, unsteered)


def compare(configuration: Configuration, folder: Path, want: Wanted) -> dict[str, Any]:
    """Run a configuration and count the answers that are token for token those of plain transformers."""
    settings = {**SETTINGS, **configuration.settings}
    if configuration.stored:
        repository = folder.with_name(f"{folder.name}-settings")
        write_repo(RudderConfig(**{**settings, "alpha_max": 1.0}, base_model_name_or_path=str(folder)), repository)
        settings = {"settings": str(repository), "alpha_max": settings["alpha_max"]}
    started = time.time()
    adapter = folder / ADAPTER if configuration.adapter else None
    with ExitStack() as stack:
        if configuration.ahead:
            stack.enter_context(running_ahead())
        llm = stack.enter_context(engine(folder, configuration.options, settings))
        got = [answers(llm, batch, adapter) for batch in want.rounds]
        metrics = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
        core = getattr(llm.llm_engine.engine_core, "engine_core", None)
        scheduler = type(core.scheduler).__name__
        del llm, core
    outcome: dict[str, Any] = {"name": configuration.name, "seconds": round(time.time() - started, 1)}
    outcome["scheduler"] = scheduler
    outcome["rounds"] = [
        {
            "requests": len(batch),
            "steered": sum(not case.says_no for case in batch),
            "steered that differ from unsteered": sum(a != b for a, b in zip(right, plain, strict=True)),
            "right": sum(a == b for a, b in zip(right, answer, strict=True)),
            "right of steered": sum(
                a == b for a, b, case in zip(right, answer, batch, strict=True) if not case.says_no
            ),
        }
        for batch, right, plain, answer in zip(want.rounds, want.answers, want.unsteered, got, strict=True)
    ]
    outcome["proof"] = {name: metrics.get(name) for name in (*_PREEMPTED, *_HITS)}
    all_right = all(found["right"] == found["requests"] for found in outcome["rounds"])
    happened = all(metrics.get(name) for name in configuration.proof)
    happened &= ("Async" in scheduler) == configuration.ahead
    # Answers that steering does not change would prove nothing.
    happened &= all(2 * found["steered that differ from unsteered"] > found["steered"] for found in outcome["rounds"])
    outcome["passed"] = not all_right if configuration.control else all_right and happened
    return outcome
