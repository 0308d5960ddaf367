"""`torch.compile` with a static cache: one graph, the same result, no recompilation from one generation to the next.

Most tests run the traced graph as it is (the backend only counts graphs); one uses inductor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import CompileConfig, StaticCache

from rudder_hf import RudderForConditionalGeneration, attach
from tests.support.helpers import (
    OTHER_ROW,
    ROW,
    assert_different,
    assert_near,
    assert_same,
    family_of,
    in_threads,
    run,
    settings,
    target_layer,
)
from tests.support.zoo import FAMILIES, Row

STEERED_LAYER = 1
SAME_SHAPE = Row(seed=5, words=ROW.words)


class Compiler:
    """Compiles the decoding steps of `generate` into one graph each, and counts the graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def backend(self) -> Callable[..., Any]:
        """A backend that counts, and runs the graph as it was traced."""

        def count(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
            self.graphs += 1
            return graph.forward

        return count

    def options(self, backend: Any = None) -> dict[str, Any]:
        """Arguments of `generate`. With `fullgraph` a graph break is an error."""
        config = CompileConfig(fullgraph=True, backend=backend or self._backend, mode=None)  # type: ignore[arg-type]
        # Otherwise transformers compiles on accelerators only.
        config._compile_all_devices = True
        return {"cache_implementation": "static", "compile_config": config}

    def __enter__(self) -> Compiler:
        self._backend = self.backend()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return self

    def __exit__(self, *exception: Any) -> None:
        torch._dynamo.reset()


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    if torch.__version__.startswith("2.6."):
        pytest.skip("torch 2.6 cannot compile the models of transformers, steered or not: run with constraints.txt")
    with Compiler() as each:
        yield each


def short(name: str = "llava", *batches: list[Row], layers: int = 2) -> list[Any]:
    """A model with the first few of its decoder layers, as compiling takes its time per layer, and inputs for it."""
    family = family_of(name)
    model = family.build()
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    del model.get_submodule(family.layers)[layers:]
    config.num_hidden_layers = layers
    if kinds:
        config.layer_types = kinds[:layers]
    return [model, *(family.inputs(model, batch) for batch in batches or ([ROW],))]


def wrapped(model: Any, layer: int = STEERED_LAYER) -> RudderForConditionalGeneration:
    return RudderForConditionalGeneration.from_base(model, settings(layer=layer))


def eager(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    """The same generation without compiling."""
    return run(model, inputs, cache_implementation="static", **options)


def assert_trace_near(output: Any, expected: Any) -> None:
    for name in ("card", "similarity", "gate", "push"):
        torch.testing.assert_close(getattr(output.rudder, name), getattr(expected.rudder, name), equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "idefics2", "instructblip", "gemma3"])
def test_compiled_equals_eager(name: str, compiler: Compiler) -> None:
    """A left-padded batch with settings per row and a trace: tokens, logits and trace are those of eager mode."""
    second = [SAME_SHAPE, Row(seed=6, words=OTHER_ROW.words)]
    # The third layer of Gemma 3 is the first that attends beyond the window.
    model, inputs, others = short(name, [ROW, OTHER_ROW], second, layers=3 if name == "gemma3" else 2)
    wrapper = wrapped(model)
    options: dict[str, Any] = {"rudder": {"alpha_max": [6.0, 3.0]}, "output_rudder": True}
    output = run(wrapper, inputs, **options, **compiler.options())
    assert compiler.graphs
    wanted = eager(wrapper, inputs, **options)
    assert_near(output, wanted)
    assert_trace_near(output, wanted)
    assert_different(output, eager(wrapper, inputs, rudder=False))
    # Another prompt and other settings meet the same graph, with a state of their own.
    graphs = compiler.graphs
    options["rudder"] = {"alpha_max": [9.0, 6.0], "k": [5.0, 2.0], "norm_cap": [None, 2.0]}
    output = run(wrapper, others, **options, **compiler.options())
    wanted = eager(wrapper, others, **options)
    assert_near(output, wanted)
    assert_trace_near(output, wanted)
    assert compiler.graphs == graphs


def test_no_recompilation(compiler: Compiler) -> None:
    """One graph serves every later generation in the same mode, whatever its prompt and settings."""
    model, *prompts = short("llava", [ROW], [SAME_SHAPE])
    wrapper = wrapped(model)
    changes: dict[str, list[dict[str, Any]]] = {
        "beta": [
            {},
            {"alpha_max": 9.0},
            {"alpha_max": 0.0},
            {"k": 1.0, "c": 0.5, "g_min": 0.3, "g_max": 0.6},
            {"norm_cap": 1.5},
            {"pool": "norm", "steer_first_token": True, "span": "text"},
        ],
        "add": [{}, {"alpha_max": 2.0, "norm_cap": 1.0}],
    }
    for expected, (mode, each_change) in enumerate(changes.items(), start=1):
        for index, change in enumerate(each_change):
            inputs, rudder = prompts[index % 2], {"mode": mode, **change}
            output = run(wrapper, inputs, rudder=rudder, **compiler.options())
            assert_near(output, eager(wrapper, inputs, rudder=rudder))
            assert compiler.graphs == expected
    # Changing back costs nothing either.
    run(wrapper, prompts[0], **compiler.options())
    assert compiler.graphs == 2


def test_steered_vanilla_and_another_layer(compiler: Compiler) -> None:
    """Graphs of vanilla decoding and of each layer stand beside each other, and none is taken for another."""
    model, inputs = short()
    vanilla = run(model, inputs, **compiler.options())
    assert compiler.graphs == 1
    # The model was compiled before it is steered.
    handle = attach(model, settings(layer=STEERED_LAYER))
    wanted = {1: eager(model, inputs)}
    assert_near(run(model, inputs, **compiler.options()), wanted[1])
    assert compiler.graphs == 2
    assert_same(run(model, inputs, rudder=False, **compiler.options()), vanilla)
    assert_near(run(model, inputs, **compiler.options()), wanted[1])
    assert compiler.graphs == 2

    handle.config.layer = 0
    wanted[0] = eager(model, inputs)
    assert_different(wanted[0], wanted[1])
    for layer, graphs in ((0, 3), (1, 3), (0, 3)):
        handle.config.layer = layer
        assert_near(run(model, inputs, **compiler.options()), wanted[layer])
        assert compiler.graphs == graphs

    handle.remove()
    assert_same(run(model, inputs, **compiler.options()), vanilla)
    with attach(model, settings(layer=STEERED_LAYER, alpha_max=3.0)):
        output = run(model, inputs, **compiler.options())
        assert_near(output, eager(model, inputs))
    assert compiler.graphs == 3


def test_failure_under_a_compiled_graph(compiler: Compiler) -> None:
    """A compiled generation that breaks off, and one inside it, leave the graph usable."""
    model, inputs, others = short("llava", [ROW], [SAME_SHAPE])
    wrapper = wrapped(model)
    wanted, wanted_other = eager(wrapper, inputs), eager(wrapper, others)

    class Streamer:
        def __init__(self) -> None:
            self.puts = 0

        def put(self, value: Any) -> None:
            self.puts += 1
            if self.puts == 4:
                assert_near(run(wrapper, others, **compiler.options()), wanted_other)
                raise KeyboardInterrupt

        def end(self) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        run(wrapper, inputs, streamer=Streamer(), **compiler.options())
    assert_near(run(wrapper, inputs, **compiler.options()), wanted)
    assert compiler.graphs == 1


def test_layers_that_take_no_keywords(compiler: Compiler) -> None:
    """Where the state cannot travel as an argument, it waits in the thread's slot, which graphs read too."""
    model, inputs = short("llava-plain")
    vanilla = run(model, inputs, **compiler.options())
    torch._dynamo.reset()
    with attach(model, settings(layer=STEERED_LAYER)):
        assert_near(run(model, inputs, **compiler.options()), eager(model, inputs))
    torch._dynamo.reset()
    assert_near(run(model, inputs, **compiler.options()), vanilla)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "self_attn"])
def test_layers_compiled_one_by_one(part: str, compiler: Compiler) -> None:
    """Regional compilation: never unsteered, though it came before attaching."""
    model, inputs = short()
    with attach(model, settings(layer=STEERED_LAYER)):
        wanted = eager(model, inputs)
    layer = target_layer(FAMILIES["llava"], model, STEERED_LAYER)
    layer.get_submodule(part).compile(backend=compiler.backend(), fullgraph=True)
    eager(model, inputs)
    assert compiler.graphs
    with attach(model, settings(layer=STEERED_LAYER)):
        # A layer's graph from before leaves the hooks out, which is an error; that of its attention notices them.
        if not part:
            with pytest.raises(RuntimeError, match="compiled in a way that leaves the hooks out"):
                eager(model, inputs)
            torch._dynamo.reset()
        assert_near(eager(model, inputs), wanted)


def test_threads_share_a_compiled_graph(compiler: Compiler) -> None:
    """Threads that decode with one graph, each with a prompt and a strength of its own, get what they get alone."""
    model, *prompts = short("llava", *([Row(seed=seed, words=ROW.words)] for seed in range(6)))
    wrapper = wrapped(model)
    jobs = [
        lambda i=inputs, a=2.0 + seed: run(wrapper, i, rudder={"alpha_max": a}, **compiler.options())
        for seed, inputs in enumerate(prompts)
    ]
    expected = [job() for job in jobs]
    for output, wanted in zip(in_threads(jobs), expected, strict=True):
        assert_same(output, wanted)
    assert compiler.graphs == 1


def test_threads_share_a_compiled_layer() -> None:
    """Where the hooks are compiled apart from each other, what passes between them still belongs to one thread."""
    model, *prompts = short("llava", *([Row(seed=seed, words=ROW.words)] for seed in range(4)))
    with Compiler() as compiler, attach(model, settings(layer=STEERED_LAYER)):
        target_layer(FAMILIES["llava"], model, STEERED_LAYER).compile(backend=compiler.backend())
        jobs = [
            lambda i=inputs, a=2.0 + seed: eager(model, i, rudder={"alpha_max": a})
            for seed, inputs in enumerate(prompts)
        ]
        expected = [job() for job in jobs]
        for output, wanted in zip(in_threads(jobs), expected, strict=True):
            assert_near(output, wanted)


@pytest.mark.slow
def test_compiled_forward(compiler: Compiler) -> None:
    """`model.forward = torch.compile(model.forward)`, as many examples have it: the prefill is compiled too."""
    model, inputs = short()
    with attach(model, settings(layer=STEERED_LAYER)):
        wanted = eager(model, inputs, output_rudder=True)
    model.forward = torch.compile(model.forward, backend=compiler.backend(), fullgraph=True)
    vanilla = eager(model, inputs)
    assert compiler.graphs == 2
    with attach(model, settings(layer=STEERED_LAYER)):
        for _ in range(2):
            output = eager(model, inputs, output_rudder=True)
            assert_near(output, wanted)
            assert_trace_near(output, wanted)
        assert_same(eager(model, inputs, rudder=False), vanilla)
    assert compiler.graphs == 4


class Replays(Compiler):
    """Compiles as CUDA graphs may run: each call of a graph spoils what graphs have returned before."""

    def backend(self) -> Callable[..., Any]:
        returned: list[torch.Tensor] = []

        def compile_graph(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
            self.graphs += 1

            def call(*args: Any) -> Any:
                outputs = graph.forward(*args)
                for tensor in returned:
                    tensor.fill_(torch.nan if tensor.is_floating_point() else 1)
                # What belongs to the caller (weights, the static cache) is no graph's own memory.
                given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
                tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
                returned[:] = [each for each in tensors if each.untyped_storage().data_ptr() not in given]
                return outputs

            return call

        return compile_graph


@pytest.mark.slow
def test_replays_that_write_over_outputs() -> None:
    """`mode="reduce-overhead"`: what the compiled prefill leaves is copied before the next graph runs."""
    model, inputs = short("llava", [ROW, OTHER_ROW])
    # Made and filled beforehand: a cache that the prefill makes would be a graph's output too.
    cache = StaticCache(model.config.get_text_config(), max_cache_len=64)
    with attach(model, settings(layer=STEERED_LAYER)):
        wanted = run(model, inputs, output_rudder=True, past_key_values=cache)
    cache.reset()
    with Replays() as replays, attach(model, settings(layer=STEERED_LAYER)):
        model.forward = torch.compile(model.forward, backend=replays.backend(), fullgraph=True)
        output = run(model, inputs, output_rudder=True, past_key_values=cache)
    assert replays.graphs == 2
    assert_near(output, wanted)
    assert_trace_near(output, wanted)


@pytest.mark.slow
def test_inductor(compiler: Compiler) -> None:
    """Code that inductor writes for the CPU gives the same tokens, steered and not."""
    model, inputs, others = short("llava", [ROW], [SAME_SHAPE], layers=1)
    wrapper = wrapped(model, layer=0)
    options = compiler.options("inductor")
    assert_near(run(wrapper, inputs, **options), eager(wrapper, inputs), 1e-4)
    frames = copy.copy(torch._dynamo.utils.counters["stats"])
    assert frames["unique_graphs"] == 1
    output = run(wrapper, others, rudder={"alpha_max": 9.0}, **options)
    assert_near(output, eager(wrapper, others, rudder={"alpha_max": 9.0}), 1e-4)
    assert torch._dynamo.utils.counters["stats"] == frames
