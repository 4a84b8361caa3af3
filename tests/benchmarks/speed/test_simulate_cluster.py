"""The simulated cluster: runs that can be worked out by hand, and what holds of every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speed.cluster import Cluster, Outcome, Work, simulate
from benchmarks.speed.simulate_cluster import (
    SLOTS,
    Costs,
    Lengths,
    Split,
    best_split,
    draw_lengths,
    make_work,
    read_costs,
    run,
    run_in_turn,
    splits,
)

RESULTS = Path(__file__).parents[3] / "docs" / "results"
COSTS = Costs(step=0.01, token=0.001, learn=0.002, reread=0.5, publish=0.0)


def work(play: float | list[list[float]], learn: float, iterations: int = 4) -> Work:
    shards = play if isinstance(play, list) else [[play]] * iterations
    return Work(play_IS=np.array(shards, dtype=float), learn_I=np.full(len(shards), float(learn)))


# --- by hand ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("play", "learn", "lag", "seconds"),
    [
        (3, 2, 0, 4 * (3 + 2)),
        (3, 2, 1, 4 * 3 + 2),  # all but the last update beside playing
        (3, 2, 4, 4 * 3 + 2),
        (2, 3, 0, 4 * (2 + 3)),
        (2, 3, 1, 2 + 4 * 3),  # all but the first play beside learning
        (2, 3, 4, 2 + 4 * 3),
    ],
)
def test_one_player_takes_the_sum_without_lag_and_the_longer_of_the_two_with_it(
    play: float, learn: float, lag: int, seconds: float
) -> None:
    outcome = simulate(work(play, learn), Cluster(players=1, lag=lag))
    assert outcome.seconds == seconds
    assert outcome.learner_idle == pytest.approx(1 - 4 * learn / seconds)
    assert outcome.player_idle == pytest.approx(1 - 4 * play / seconds)


def test_a_batch_waits_for_its_longest_shard() -> None:
    assert simulate(work([[1, 5], [1, 1]], 2), Cluster(players=2)).seconds == (5 + 2) + (1 + 2)
    assert simulate(work([[1, 5], [1, 1]], 2), Cluster(players=1)).seconds == (6 + 2) + (2 + 2)


def test_lag_lets_players_go_on_beside_a_long_shard() -> None:
    """With lag 1 the first player plays all of iteration 1 while the second is at its long shard."""
    outcome = simulate(work([[1, 5], [1, 1]], 2), Cluster(players=2, lag=1))
    assert outcome.end_I.tolist() == [7, 9]


def test_a_version_comes_to_one_player_after_the_other_or_down_a_tree() -> None:
    one = work([[3, 3, 3]], 1)
    assert simulate(one, Cluster(players=3, publish=2.0)).seconds == 3 * 2 + 3 + 1
    assert simulate(one, Cluster(players=3, publish=2.0, tree=True)).seconds == 2 * 2 + 3 + 1
    twice = work([[3, 3]], 1)  # the same version: it is sent once
    assert simulate(twice, Cluster(players=1, publish=2.0)).seconds == 2 + 3 + 3 + 1


def test_failures_cost_replays_and_restarts() -> None:
    sound = simulate(work(100, 1, 50), Cluster(players=1, lag=1))
    frail = simulate(work(100, 1, 50), Cluster(players=1, lag=1, failures=18.0, restart=10.0))
    assert sound.replays == 0
    assert 10 < frail.replays < 100  # e^(18 × 100 / 3600) − 1 of 50 plays: 32
    extra = frail.seconds - sound.seconds
    assert frail.lost * frail.seconds == pytest.approx(extra)
    assert extra > 10 * frail.replays


def test_a_lost_shard_is_played_by_whoever_is_free() -> None:
    """Its player is away for ever; the others play it again."""
    outcome = simulate(work([[100.0] * 4] * 3, 1), Cluster(players=40, failures=5.0, restart=1e9))
    assert outcome.replays > 0
    assert outcome.seconds < 10_000
    assert (outcome.taken_N == np.arange(12) // 4).all()


def test_ready_first_is_faster_and_further_behind_than_asked() -> None:
    """The second shard takes long; others overtake it and make the batches 0 to 3."""
    long = work([[1, 10], *([[1, 1]] * 5)], 1)
    in_order = simulate(long, Cluster(players=2, lag=1))
    ready_first = simulate(long, Cluster(players=2, lag=1, queue="ready-first"))
    assert (in_order.seconds, in_order.worst_lag) == (16, 1)
    assert (ready_first.seconds, ready_first.worst_lag) == (12, 4)
    assert ready_first.taken_N.tolist() == [0, 4, 0, 1, 1, 2, 2, 3, 3, 4, 5, 5]


def test_ready_first_plays_with_the_newest_version_and_learns_in_the_order_of_ends() -> None:
    newest = simulate(work(3, 1), Cluster(players=1, lag=2, queue="ready-first"))
    assert newest.version_N.tolist() == [0, 0, 1, 2]
    assert simulate(work(3, 1), Cluster(players=1, lag=2)).version_N.tolist() == [0, 0, 0, 1]
    overtaken = simulate(work([[3], [1], [1]], 10), Cluster(players=2, lag=4, queue="ready-first"))
    assert overtaken.taken_N.tolist() == [2, 0, 1]


# --- of every run -----------------------------------------------------------------------------------------------------
seconds = st.floats(min_value=0.1, max_value=50)


@given(
    play=st.integers(1, 4).flatmap(
        lambda shards: st.lists(st.lists(seconds, min_size=shards, max_size=shards), min_size=1, max_size=8)
    ),
    learn=seconds,
    players=st.integers(1, 5),
    lag=st.integers(0, 4),
    queue=st.sampled_from(["in-order", "ready-first"]),
    publish=st.sampled_from([0.0, 3.0]),
    failures=st.sampled_from([0.0, 20.0]),
    tree=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_every_shard_is_learnt_from_once(
    play: list[list[float]], learn: float, players: int, lag: int, queue: Literal["in-order", "ready-first"], **how: Any
) -> None:
    given = work(play, learn)
    outcome = simulate(given, Cluster(players=players, lag=lag, queue=queue, restart=5.0, **how))
    iterations, shards = given.play_IS.shape
    assert np.bincount(outcome.taken_N).tolist() == [shards] * iterations
    assert (outcome.version_N >= 0).all()
    assert (np.diff(outcome.end_I) >= learn - 1e-6).all()
    assert 0 <= outcome.learner_idle < 1
    assert 0 <= outcome.player_idle < 1
    if queue == "in-order":
        number = np.arange(iterations).repeat(shards)
        assert (outcome.taken_N == number).all()
        assert (outcome.version_N == np.maximum(0, number - lag)).all()
        assert outcome.worst_lag == min(lag, iterations - 1)


@given(lag=st.integers(0, 3), players=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_lag_never_slows_a_run_down(lag: int, players: int, seed: int) -> None:
    """As each shard has a player: else who is given a shard too early may be missed later."""
    given = work(np.random.default_rng(seed).lognormal(size=(20, players)).tolist(), 1)

    def run(lag: int) -> Outcome:
        return simulate(given, Cluster(players=20 * players, lag=lag))

    assert run(lag + 1).seconds <= run(lag).seconds + 1e-9


# --- costs ------------------------------------------------------------------------------------------------------------
def test_a_shard_costs_its_longest_response_and_all_tokens() -> None:
    lengths = Lengths(longest_IT=np.array([[10.0, 30.0, 20.0]]), total_IT=np.array([[40.0, 50.0, 60.0]]))
    made = make_work(COSTS, lengths, Split(learners=2, players=2, shards=2), stale=True)
    assert made.play_IS.tolist() == [pytest.approx([0.01 * 10 + 0.001 * 40, 0.01 * 30 + 0.001 * 110])]
    assert made.learn_I.tolist() == pytest.approx([0.002 * 150 * 1.5 / 2])
    assert make_work(COSTS, lengths, Split(learners=2, players=2, shards=2), stale=False).learn_I[0] == pytest.approx(
        0.15
    )


def test_lengths_have_the_same_mean_and_tails_of_their_own() -> None:
    drawn = [draw_lengths(256, 40, sigma) for sigma in (0.3, 0.7, 1.2)]
    assert [lengths.total_IT.mean() / 8 for lengths in drawn] == pytest.approx([512] * 3, rel=0.05)
    narrow, middle, wide = (lengths.longest_IT.max(axis=1).mean() / 512 for lengths in drawn)
    assert 2 < narrow < 3 < 6 < middle < 12 < wide <= 16


def test_splits_use_every_gpu_and_no_more_rows_than_an_engine_has() -> None:
    for gpus in (2, 8, 64):
        found = list(splits(gpus, 16 * gpus))
        assert found
        for split in found:
            assert split.learners + split.players == gpus
            assert -(-16 * gpus // split.shards) * 8 <= SLOTS


def test_the_best_split_is_the_fastest() -> None:
    lengths = draw_lengths(128, 10, 0.7)
    best = run(COSTS, lengths, best_split(COSTS, lengths, 8, 1), 1).seconds
    assert best == min(run(COSTS, lengths, split, 1).seconds for split in splits(8, 128))


def test_a_large_cluster_is_split_as_a_smaller_one() -> None:
    lengths = draw_lengths(64 * 16, 2, 0.7)
    small = best_split(
        COSTS, Lengths(longest_IT=lengths.longest_IT[:, :512], total_IT=lengths.total_IT[:, :512]), 32, 1
    )
    large = best_split(COSTS, lengths, 64, 1)
    assert large == Split(learners=2 * small.learners, players=2 * small.players, shards=2 * small.shards)


def test_the_synchronous_run_is_the_sum() -> None:
    lengths = Lengths(longest_IT=np.array([[10.0, 30.0]]), total_IT=np.array([[40.0, 50.0]]))
    assert run_in_turn(COSTS, lengths, 2).seconds == pytest.approx(0.01 * 30 + 0.001 * 50 + 0.002 * 90 / 2)


def test_costs_are_the_measured_ones() -> None:
    """A step of all rows takes what the engine was measured to take, whatever the share that is fixed."""
    for share in (0.25, 0.75):
        costs = read_costs(RESULTS, share)
        assert 256 / (costs.step + 256 * costs.token) == pytest.approx(50_945)
        assert costs.step / (costs.step + 256 * costs.token) == pytest.approx(share)
