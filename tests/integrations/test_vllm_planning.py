"""Steering in a batch whose rows come, go, are cut into chunks and share cached blocks, without vLLM.

A small engine here schedules requests at random as vLLM may; what the operator reads and steers is compared with the
slow formulas of `tests/support/reference.py`, request by request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rudder_hf.core.steering import steer_step
from rudder_hf.integrations.vllm import buffers as buffers_module
from rudder_hf.integrations.vllm import operator
from rudder_hf.integrations.vllm.buffers import Buffers
from rudder_hf.integrations.vllm.layers import Target
from rudder_hf.integrations.vllm.operator import read_and_steer
from rudder_hf.integrations.vllm.planning import STEER, Changes, Planned, Planner, private_hashes
from rudder_hf.integrations.vllm.settings import engine_settings, request_settings
from tests.support.reference import card, gate

WIDTH, SLOTS, MOST, BLOCK_SIZE, BLOCKS = 8, 3, 64, 4, 64
ENGINE = engine_settings({"layer": 0, "alpha_max": 6.0, "k": 4.0})


def vectors(tokens: tuple[int, ...], kind: str) -> torch.Tensor:
    """What a layer would see at the last of these tokens: it depends on the tokens before, and on nothing else."""
    seed = random.Random(repr((tokens, kind))).randrange(2**31)
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


@dataclass
class Job:
    """A request of the small engine."""

    name: str
    tokens: tuple[int, ...]
    prompt: int
    extra: dict[str, Any] | None = None
    blocks: list[int] = field(default_factory=list)
    counted: Any = None  # for each position whether it is in the pooled span
    computed: int = 0

    def expected(self, position: int, pool: str) -> torch.Tensor:
        """What leaves the layer at a position, by the slow formulas."""
        update = vectors(self.tokens[: position + 1], "update")
        chosen = request_settings(ENGINE, self.extra)
        last_prompt = chosen is not None and chosen.steer_first_token and position == self.prompt - 1
        if chosen is None or not (position >= self.prompt or last_prompt):
            return update
        read = torch.stack([vectors(self.tokens[: index + 1], "update") for index in range(self.prompt)]).double()
        counted = [True] * self.prompt if self.counted is None else self.counted[: self.prompt].tolist()
        v = card(read, counted, pool)
        h = vectors(self.tokens[: position + 1], "h").double()
        s = float(h @ v / h.norm())
        alpha_max, k, c, g_min, g_max, cap = chosen.push_rows()[0]
        strength = min(alpha_max * gate(s, k, c, g_min, g_max), cap)
        return (update.double() + strength * v).float()


class SmallEngine:
    """Planner, buffers and operator, driven step by step."""

    def __init__(self, cached: bool = False, pool: str = "mean", branches: bool = True) -> None:
        self.pool = pool
        self.planner = Planner(SLOTS, MOST, BLOCK_SIZE if cached else None, BLOCKS if cached else 0)
        self.buffers = Buffers(SLOTS, WIDTH, MOST, torch.device("cpu"), pool == "norm")
        self.buffers.branches = branches
        if cached:
            self.buffers.keep_blocks(BLOCKS)

    def admit(self, *jobs: Job, hits: int = 0) -> None:
        for job in jobs:
            chosen = request_settings(ENGINE, job.extra)
            first = chosen is not None and chosen.steer_first_token
            planned = Planned(job.prompt, chosen is not None, first, job.counted)
            slot = self.planner.admit(job.name, planned, job.blocks[: hits // BLOCK_SIZE])
            if chosen is not None:
                self.buffers.open_slot(slot, chosen.push_rows()[0])
            job.computed = hits

    def run(self, job: Job, *counts: int) -> None:
        """Run forwards of one request, with so many tokens each."""
        for count in counts:
            self.step((job, count))

    def step(self, *work: tuple[Job, int], padding: int = 0) -> bool:
        """Run one forward, compare every token of it and return whether it was planned like the last."""
        blocks = {job.name: job.blocks for job, _ in work}
        computed = np.array([job.computed for job, _ in work])
        total = sum(count for _, count in work)
        before = self.planner._steady
        changes = plan(self.planner, {job.name: count for job, count in work}, computed, padding, blocks)
        if changes is not None:
            self.buffers.apply(self.planner, changes, total + padding)
        places = [(job, job.computed + index) for job, count in work for index in range(count)]
        garbage = torch.full((padding, WIDTH), torch.nan)
        h = torch.cat([torch.stack([vectors(job.tokens[: at + 1], "h") for job, at in places]), garbage])
        update = torch.cat([torch.stack([vectors(job.tokens[: at + 1], "update") for job, at in places]), garbage])
        out = read_and_steer(h, update, self.buffers)
        expected = torch.stack([job.expected(at, self.pool) for job, at in places])
        torch.testing.assert_close(out[:total], expected, rtol=1e-4, atol=1e-4)
        for job, count in work:
            job.computed += count
        return before is not None and self.planner._steady is before


def plan(
    planner: Planner,
    counts: dict[str, int],
    computed: Any,
    padding: int = 0,
    blocks: dict[str, list[int]] | None = None,
) -> Changes | None:
    """The plan of a forward of these requests."""
    total = sum(counts.values())
    return planner.plan(list(counts), np.array(computed), counts, total, total + padding, (blocks or {}).__getitem__)


EXTRAS = (
    None,
    {"rudder": False},
    {"rudder_alpha_max": 2.0},
    {"rudder_mode": "add", "rudder_norm_cap": 3.0},
    {"rudder_steer_first_token": True, "rudder_k": 1.0},
)


def make_job(draw: random.Random, number: int) -> Job:
    prompt = draw.randint(1, 14)
    tokens = tuple(draw.randrange(50) for _ in range(prompt + draw.randint(1, 8)))
    return Job(f"request {number}", tokens, prompt, draw.choice(EXTRAS), list(range(8 * number, 8 * number + 8)))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6), pool=st.sampled_from(["mean", "norm"]), cached=st.booleans(), branches=st.booleans()
)
def test_any_schedule_steers_each_request_as_if_alone(seed: int, pool: str, cached: bool, branches: bool) -> None:
    """Also where graphs are captured, so that every forward takes every part of the operator."""
    draw = random.Random(seed)
    engine = SmallEngine(cached, pool, branches)
    waiting = [make_job(draw, number) for number in range(7)]
    running: list[Job] = []
    while waiting or running:
        while waiting and len(running) < SLOTS and draw.random() < 0.8:
            engine.admit(job := waiting.pop())
            running.append(job)
        draw.shuffle(running)
        chosen = [job for job in running if draw.random() < 0.8]
        work = [(job, draw.randint(1, len(job.tokens) - job.computed)) for job in chosen]
        if work:
            engine.step(*work, padding=draw.choice([0, 3]))
        for job in list(running):
            done = job.computed == len(job.tokens)
            if done or draw.random() < 0.1:
                # Ended, or preempted to begin again.
                engine.planner.release(job.name)
                running.remove(job)
                if not done:
                    waiting.insert(0, job)
    assert len(engine.planner._free) == SLOTS


def test_blocks_that_are_filled_in_the_same_forward() -> None:
    """vLLM may let a request begin behind blocks which another one computes in that very forward."""
    engine = SmallEngine(cached=True)
    shared = tuple(range(8))
    engine.admit(first := Job("first", (*shared, 20, 21), 9, None, [1, 2, 3]))
    engine.admit(second := Job("second", (*shared, 30, 31), 9, {"rudder_alpha_max": 3.0}, [1, 2, 4]), hits=8)
    engine.step((second, 1), (first, 9))
    engine.step((first, 1), (second, 1))


def test_a_block_that_is_used_again_forgets_its_old_tokens() -> None:
    engine = SmallEngine(cached=True)
    old = Job("old", tuple(range(40, 48)), 8, None, [1, 2])
    new = Job("new", tuple(range(10)), 8, None, [2, 1, 3])
    for job in (old, new):
        engine.admit(job)
        engine.run(job, 8)
        engine.planner.release(job.name)
    engine.admit(again := Job("again", tuple(range(10)), 9, None, [2, 1, 4]), hits=8)
    engine.run(again, 1, 1)


@pytest.mark.parametrize("span", ["text", "image"])
def test_positions_outside_the_span_are_not_read(span: str) -> None:
    engine = SmallEngine(cached=True)
    counted = np.array([True, False, True, True, False, True, False, True, True, True, span == "text", span == "text"])
    shared = tuple(range(10))
    engine.admit(first := Job("first", (*shared, 20, 21), 10, None, [1, 2, 3], counted))
    engine.run(first, 3, 7, 2)
    engine.admit(second := Job("second", (*shared, 30), 10, None, [1, 2, 4], counted), hits=8)
    engine.run(second, 2, 1)


def test_a_factor_of_the_layer_is_made_up_for() -> None:
    """What reaches the residual stream is the push that was asked for."""
    added = []
    for multiplier in (1.0, 0.5):
        buffers = Buffers(SLOTS, WIDTH, MOST, torch.device("cpu"), multiplier=multiplier)
        buffers.open_slot(0, request_settings(ENGINE, {"rudder_mode": "add"}).push_rows()[0])
        buffers.sums[0] = 1.0
        buffers.refresh()
        buffers.tokens[STEER, 0] = 0
        h = torch.ones(1, 1, WIDTH)
        added.append(multiplier * steer_step(h, torch.zeros_like(h), buffers.of_tokens(slice(0, 1))[0]))
    assert added[0].norm() > 0
    torch.testing.assert_close(added[0], added[1])


def test_unsteered_rows_are_bit_for_bit_what_they_were() -> None:
    planner, buffers = Planner(SLOTS, MOST), Buffers(SLOTS, WIDTH, MOST, torch.device("cpu"))
    buffers.sums[SLOTS] = torch.nan
    buffers.branches = False
    planner.admit("plain", Planned(2, steered=False))
    changes = plan(planner, {"plain": 5}, [0])
    assert changes is not None
    buffers.apply(planner, changes, 5)
    update = torch.randn(5, WIDTH).to(torch.bfloat16)
    assert torch.equal(read_and_steer(torch.randn(5, WIDTH), update, buffers), update)


def test_a_forward_without_steered_tokens_leaves_the_layer_alone() -> None:
    """Of unsteered answers only the sums of blocks are kept, where others may find them in the cache."""
    update = torch.randn(1, 2, WIDTH)
    for cached, steered in ((False, False), (False, True), (True, False)):
        engine = SmallEngine(cached)
        target = Target(1.0)
        target.buffers = engine.buffers
        jobs = [Job(name, tuple(range(9)), 4, {"rudder": steered}, [1, 2, 3]) for name in ("one", "two")]
        engine.admit(*jobs)
        for count in (4, 1, 1, 1):
            engine.step(*((job, count) for job in jobs))
        target.h = torch.randn(1, 2, WIDTH)
        assert (target._steer(update) is update) == (not steered)


def test_answers_of_steered_requests_are_in_no_sum() -> None:
    """Their blocks are shared with nobody."""
    engine = SmallEngine(cached=True)
    jobs = [Job(f"{row}", tuple(range(16)), 4, {"rudder": row}, [4 * row + n for n in range(4)]) for row in (0, 1)]
    engine.admit(*jobs)
    for count in (4, *[1] * 12):
        engine.step(*((job, count) for job in jobs))
    assert engine.buffers.block_sums is not None
    assert engine.buffers.block_sums[:8].any(dim=1).tolist() == [True] * 5 + [False] * 3


def test_long_forwards_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last prompt position is steered with a CARD that all parts were read into."""
    monkeypatch.setattr(operator, "ROWS", 4)
    engine = SmallEngine(cached=True)
    job = Job("long", tuple(range(30)), 15, {"rudder_steer_first_token": True}, [3, 1, 4, 2, 5, 6, 7, 8])
    engine.admit(job)
    engine.step((job, 17), padding=2)
    engine.step((job, 6))
    engine.step((job, 7), padding=1)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("branches", [False, True])
def test_answers_token_by_token(cached: bool, branches: bool) -> None:
    """Forwards that are like the last one, and those that only look so."""
    engine = SmallEngine(cached, branches=branches)
    counted = np.array([True, True, False, True, True, True, *[False] * 34])
    extras: list[Any] = [None, {"rudder": False}, {"rudder_alpha_max": 3.0}]
    jobs = [
        Job(f"{n}", tuple(range(20 * n, 20 * n + 40)), 6, extra, list(range(10 * n, 10 * n + 10)), counted)
        for n, extra in enumerate(extras)
    ]
    engine.admit(*jobs)
    same = []

    def step(*work: tuple[Job, int], padding: int = 0) -> None:
        same.append(engine.step(*work, padding=padding))

    one, two, three = jobs
    step((one, 6), (two, 6))
    for _ in range(3):
        step((one, 1), (two, 1))
    step((two, 1), (one, 1))
    step((two, 1), (one, 1), padding=2)
    step((two, 1), (one, 1), padding=2)
    # A request comes, whose last prompt token is alone.
    step((one, 1), (two, 1), (three, 5))
    for _ in range(3):
        step((one, 1), (two, 1), (three, 1))
    # A forward of nobody in between.
    engine.buffers.neutral(engine.planner)
    for _ in range(2):
        step((one, 1), (two, 1), (three, 1))
    # One is preempted: it reads its prompt anew, in another slot, and answers at once.
    engine.planner.release("0")
    engine.admit(one)
    step((one, 8), (two, 1), (three, 1))
    for _ in range(2):
        step((one, 1), (two, 1), (three, 1))
    # Once more, and it begins with a single token.
    engine.planner.release("0")
    engine.admit(one)
    for _ in range(9):
        step((one, 1), (two, 1), (three, 1))
    alike = [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, *[0] * 7, 1, 1]
    if cached:
        # The unsteered request begins blocks now and then, which others may find in the cache.
        assert any(same)
        assert all(likewise for found, likewise in zip(same, alike, strict=True) if found)
    else:
        assert same == [bool(value) for value in alike]


def test_blocks_that_answers_fill_token_by_token() -> None:
    """An unsteered answer is part of the next prompt, which finds its blocks in the cache."""
    engine = SmallEngine(cached=True)
    tokens = tuple(range(16))
    engine.admit(first := Job("first", tokens, 5, {"rudder": False}, [3, 1, 2, 4]))
    engine.run(first, 5, *[1] * 11)
    engine.planner.release("first")
    engine.admit(second := Job("second", (*tokens[:12], 30, 31), 13, None, [3, 1, 2, 5]), hits=12)
    engine.run(second, 1, 1)


def test_a_slot_that_nothing_is_read_into_has_no_direction() -> None:
    """Without any token of the span there is no CARD, and none of the slot's last request."""
    engine = SmallEngine()
    engine.admit(before := Job("before", tuple(range(8)), 6))
    engine.run(before, 8)
    engine.planner.release("before")
    engine.admit(after := Job("after", tuple(range(20, 28)), 6, counted=np.zeros(8, dtype=bool)))
    engine.run(after, 6, 1)


@pytest.mark.parametrize("cached", [False, True])
def test_nothing_is_added_to_the_spare_rows(cached: bool) -> None:
    """On a GPU additions of all decoded tokens to one row would wait for each other."""
    engine = SmallEngine(cached, branches=False)
    engine.admit(job := Job("steered", tuple(range(12)), 6, None, [1, 2, 3]))
    for count in (6, 1, 1, 1):
        engine.step((job, count), padding=2)
    assert engine.buffers.sums[:SLOTS].any()
    assert not engine.buffers.sums[SLOTS].any()
    if engine.buffers.block_sums is not None:
        assert engine.buffers.block_sums[:BLOCKS].any()
        assert not engine.buffers.block_sums[BLOCKS].any()


def test_the_same_tokens_make_the_same_sums() -> None:
    """Bit for bit, whatever the order of threads: there are no atomic additions."""
    rows = torch.tensor([1, 3, 1, 0, 3, 1])
    delta = torch.randn(6, WIDTH)
    delta[[1, 4]] = torch.nan  # padding
    sums = torch.ones(4, WIDTH)
    with NoAtomics():
        operator._add(sums, rows, delta)
    torch.testing.assert_close(sums[0], 1 + delta[3])
    torch.testing.assert_close(sums[1], 1 + delta[[0, 2, 5]].sum(0))
    assert torch.equal(sums[2:], torch.ones(2, WIDTH))


class NoAtomics(TorchDispatchMode):
    """Refuses operators that add to the same place from several threads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert "add_" not in name, name
        assert "scatter" not in name, name
        if name == "index_put_":
            assert not (args[3:] and args[3]), "index_put_ that accumulates"
        return func(*args, **(kwargs or {}))


class Device(TorchDispatchMode):
    """Stands for a device (`meta`): notes what comes from the host past `to_device`, and what has to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.past: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        inputs = [value for value in args if isinstance(value, torch.Tensor)]
        crosses = isinstance(out, torch.Tensor) and out.is_meta and any(not value.is_meta for value in inputs)
        from_list = name == "lift_fresh" and isinstance(out, torch.Tensor) and out.is_meta
        if crosses or from_list or name in ("_local_scalar_dense", "nonzero"):
            self.past.append(name)
        return out

    def to_device(self, values: Any, device: torch.device) -> torch.Tensor:
        """Take the place of `buffers.to_device`, which needs an accelerator to pin memory for."""
        self.sent += 1
        host = torch.as_tensor(values)
        return torch.empty(host.shape, dtype=host.dtype, device=device)


@pytest.mark.parametrize("cached", [False, True])
def test_a_device_is_never_waited_for(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that comes from the host goes through `to_device`, and decoding sends nothing unless a block begins."""
    planner = Planner(SLOTS, MOST, BLOCK_SIZE if cached else None, BLOCKS if cached else 0)
    buffers = Buffers(SLOTS, WIDTH, MOST, torch.device("meta"))
    if cached:
        buffers.keep_blocks(BLOCKS)
    assert not buffers.branches
    row = request_settings(ENGINE, None).push_rows()[0]
    buffers_module._folded(tuple(row), 1.0)
    blocks = {"a": [1, 2, 3, 4], "b": [1, 5, 6, 7]}

    def forward(counts: dict[str, int], computed: list[int]) -> int:
        before = device.sent
        changes = plan(planner, counts, computed, blocks=blocks)
        total = sum(counts.values())
        if changes is not None:
            buffers.apply(planner, changes, total)
        h = torch.empty(total, WIDTH, device="meta")
        read_and_steer(h, h, buffers)
        return device.sent - before

    device = Device()
    monkeypatch.setattr(buffers_module, "to_device", device.to_device)
    with device:
        buffers.open_slot(planner.admit("a", Planned(6, steered=True)), row)
        assert forward({"a": 6}, [0]) > 0
        hits = [1] if cached else []
        buffers.open_slot(planner.admit("b", Planned(6, steered=True), hits), row)
        assert forward({"a": 1, "b": 2 if cached else 6}, [6, 4 if cached else 0]) > 0
        assert forward({"a": 1, "b": 1}, [7, 6]) > 0
        sent = [forward({"a": 1, "b": 1}, [8 + step, 7 + step]) for step in range(4)]
    assert device.past == []
    assert sent == [0] * 4


def test_slots_end() -> None:
    planner = Planner(2, MOST)
    for name in ("a", "b"):
        planner.admit(name, Planned(3, steered=True))
    planner.admit("unsteered ones need none", Planned(3, steered=False))
    with pytest.raises(RuntimeError, match="2 slots"):
        planner.admit("c", Planned(3, steered=True))
    planner.release("a")
    planner.release("never seen")
    assert planner.admit("c", Planned(3, steered=True)) in (0, 1)
    assert planner.admit("b", Planned(3, steered=True)) in (0, 1)


@dataclass
class Hashed:
    """What the hasher sees of a request."""

    tokens: list[int]
    block_hashes: list[bytes] = field(default_factory=list)


def chained(request: Hashed) -> list[bytes]:
    """Names blocks of two tokens by their tokens and the name before, as vLLM does."""
    new: list[bytes] = []
    for start in range(2 * len(request.block_hashes), len(request.tokens) - 1, 2):
        before = new[-1] if new else (request.block_hashes[-1] if request.block_hashes else b"")
        new.append(bytes(request.tokens[start : start + 2]) + before)
    return new


@given(cut=st.integers(0, 4), split=st.integers(0, 8))
def test_only_clean_blocks_keep_their_names(cut: int, split: int) -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    plain = chained(Hashed(tokens))
    found = []
    for owner in ("a", "b"):
        hasher, request = private_hashes(chained, cut, owner), Hashed(tokens[:split])
        # Tokens come in two parts.
        request.block_hashes += hasher(request)
        request.tokens = tokens
        request.block_hashes += hasher(request)
        found.append(request.block_hashes)
        assert request.block_hashes[:cut] == plain[:cut]
    assert len(found[0]) == len(plain)
    assert not set(found[0][cut:]) & {*found[1][cut:], *plain}
