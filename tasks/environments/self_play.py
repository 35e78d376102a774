"""Environments of a game of two, seen from the player who learns; the other player's moves are made here.

A game is an environment whose setting `turns` makes every step one move: the reward is the mover's, and the observation
that of the player who moves next. Rounds hold the learner's moves alone: a row's reward is what the move and the reply
to it brought, and the next row is seen after the reply. Imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.native import RoundEnd, fill_noise
from penstock.tasks.seeds import Purpose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native import Pool


class Player(Protocol):
    """Chooses moves."""

    def __call__(self, observation: NDArray[Any], noise: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return a move for each row: `[n]` for observations `[n, ...]` and Gumbel noise `[n, choices]`."""


class UniformPlayer:
    """Chooses any allowed move, each with the same probability.

    Args:
        is_masked: whether observations begin with the mask of allowed moves; if not, all are allowed.
    """

    def __init__(self, *, is_masked: bool) -> None:
        self._is_masked = is_masked

    def __call__(self, observation: NDArray[Any], noise: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the allowed move with the largest noise."""
        allowed = observation[:, : noise.shape[1]] != 0 if self._is_masked else True
        moves: NDArray[np.int64] = np.where(allowed, noise, -np.inf).argmax(-1)
        return moves


class SelfPlayPool:
    """The rollout API of a pool, for the learner's side of games. For one thread at a time.

    The learner begins the episodes of an environment in turn: environment i begins episode e if i + e is even. The
    player of the other side is drawn anew for every round, also within an episode, by the run's seed, the round and the
    environment: which process plays makes no difference. Its noise is keyed in the same way.

    Up to `opening_moves` moves of an episode, any number of them with the same probability, are made at random for both
    sides before the learner's first. Rows begin after them.
    """

    def __init__(
        self,
        game: Pool,
        env_ids: range,
        seed: int,
        round_steps: int,
        players: Sequence[Player],
        probabilities: Sequence[float],
        opening_moves: int = 0,
    ) -> None:
        """Create the pool; starts no episode yet.

        Args:
            game: with `turns`, and without automatic resets.
            env_ids: of its environments in the run.
            seed: of the run.
            round_steps: the learner's moves in a round, of each environment.
            players: those who may be on the other side.
            probabilities: of each, which add up to 1.
            opening_moves: most random moves before an episode's first row.
        """
        envs = len(env_ids)
        self._game = game
        self._ids = np.asarray(env_ids, dtype=np.int64)
        self._seed = seed
        self._players = players
        self._uniform = UniformPlayer(is_masked="behind_mask" in game.environment["observation"])
        self._cumulative = np.cumsum(probabilities)
        self._all = np.arange(envs, dtype=np.int32)
        # Replies, and first moves of the other side, which are made after the step that ended the episode before.
        self._noise = np.empty((2 * round_steps, envs, game.environment["action"]["n"]), dtype=np.float32)
        # For the episodes that begin after each step: how many moves are random, and which.
        self._openings = np.empty(
            (round_steps if opening_moves else 0, 1 + opening_moves, *self._noise.shape[1:]), dtype=np.float32
        )
        self._steps = round_steps
        self._opponent = np.zeros(envs, dtype=np.int64)
        self._seen: NDArray[Any] = np.empty(0)
        self._columns: tuple[NDArray[Any], ...] = ()
        self._ended: list[dict[str, NDArray[Any]]] = []
        self._final: list[NDArray[Any]] = []
        self._facts: dict[str, NDArray[Any]] = {
            "round": np.zeros(envs, dtype=np.int64),
            "episode_id": np.zeros(envs, dtype=np.int64),
            "length": np.zeros(envs, dtype=np.int64),
            "return": np.zeros(envs, dtype=np.float64),
            "opens": np.zeros(envs, dtype=np.uint8),
        }

    def reset_ids(self, seeds: NDArray[np.uint64]) -> None:
        """Seed environment b with `seeds[b]` and start its first episode, which has the id 0."""
        self._game.reset_ids(seeds)
        for values in self._facts.values():
            values.fill(0)
        self._facts["opens"][:] = self._opens(self._all)
        self._seen = self._game.observation

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a saved state, bit for bit."""
        self._game.restore({name: values for name, values in state.items() if not name.startswith(_PREFIX)})
        self._facts = {name: np.array(state[_PREFIX + name]) for name in self._facts}
        self._seen = self._game.observation

    def save(self) -> dict[str, NDArray[Any]]:
        """Return everything that the next round depends on, as named arrays `[B, ...]`."""
        return {**self._game.save(), **{_PREFIX + name: values.copy() for name, values in self._facts.items()}}

    def begin_round(
        self,
        observation: NDArray[Any],
        reward: NDArray[np.float32],
        terminated: NDArray[np.uint8],
        truncated: NDArray[np.uint8],
        episode_id: NDArray[np.int32],
    ) -> None:
        """Take the buffers of a round, all `[T, B]` and `observation` `[T, B, ...]`; writes row 0 of observations."""
        round_ = int(self._facts["round"][0])
        self._columns = observation, reward, terminated, truncated, episode_id
        self._opponent = draw_players(self._seed, round_, self._ids, self._cumulative)
        fill_noise("gumbel", self._seed, Purpose.OPPONENT_ACTION, self._ids, round_, self._noise)
        if self._openings.size:
            flat = self._openings.reshape(-1, *self._openings.shape[2:])
            fill_noise("uniform", self._seed, Purpose.OPENING, self._ids, round_, flat)
        self._ended, self._final = [], []
        self._begin_episodes(-1)
        observation[0] = self._seen

    def step_round(self, t: int, action: NDArray[Any]) -> None:
        """Make the learner's move t, int64 `[B]`, and the other side's reply.

        Writes row t of reward, terminated, truncated and episode_id, and row t + 1 of the observations.

        Raises:
            ValueError: the game truncated an episode by the learner's move: only the other player's view follows it.
        """
        observation, reward, terminated, truncated, episode_id = self._columns
        seen, own, over, cut, _ = self._game.step_rows(action, self._all)
        if (cut & ~over).any():
            # What the other player sees says nothing of how the learner's return would go on.
            raise ValueError(
                f"{self._game.environment['id']} truncated an episode by the learner's move, expected a game that ends "
                f"by its rules; have its step give `terminated`, with the reward that such an end has, or choose "
                f"league.opponents = 'environment'; a run that has this game can't go on, so start another one"
            )
        going = np.flatnonzero(~(over | cut))
        if len(going):
            replies = self._moves(seen[going], going, self._noise[2 * t])
            seen[going], others, over[going], cut[going], _ = self._game.step_rows(replies, going)
            own[going] -= others
        self._seen = seen
        self._facts["length"] += 1
        self._facts["return"] += own
        reward[t], terminated[t], truncated[t], episode_id[t] = own, over, cut, self._facts["episode_id"]
        if (over | cut).any():
            self._end_episodes(t, over, cut)
        if t + 1 < self._steps:
            self._begin_episodes(t)
            observation[t + 1] = self._seen

    def end_round(self) -> RoundEnd:
        """Return the end of the round, which is not in the buffers. All T steps must have been made."""
        self._columns = ()
        self._facts["round"] += 1
        ended = {
            name: np.concatenate([one[name] for one in self._ended] or [np.empty(0, dtype=dtype)])
            for name, dtype in _EPISODE.items()
        }
        before_last = self._all.size * (self._steps - 1)
        earlier = ended["row"] < before_last
        rows = np.concatenate([ended["row"][earlier], before_last + self._all.astype(np.int64)])
        # After the last step, environments whose episode ended there were reset: theirs is what was seen before that.
        last = self._seen.copy()
        final = np.concatenate(self._final) if self._final else last[:0]
        last[ended["env"][~earlier]] = final[~earlier]
        return RoundEnd(rows, np.concatenate([final[earlier], last]), ended)

    def close(self) -> None:
        """Close the games."""
        self._game.close()

    def _end_episodes(self, t: int, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        mask = terminated | truncated
        envs = np.flatnonzero(mask)
        facts = self._facts
        ended = {
            "row": t * self._all.size + envs,
            "env": envs,
            "terminated": terminated[envs],
            "truncated": truncated[envs],
            **{name: facts[name][envs] for name in ("episode_id", "length", "return")},
        }
        self._ended.append({name: ended[name].astype(dtype) for name, dtype in _EPISODE.items()})
        self._final.append(self._seen[envs])
        self._begin_again(envs)
        facts["episode_id"][envs] += 1
        facts["length"][envs] = 0
        facts["return"][envs] = 0
        facts["opens"][envs] = self._opens(envs)

    def _opens(self, envs: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where moves are to be made before an episode's first row."""
        return self._other_begins(envs) | bool(self._openings.size)

    def _other_begins(self, envs: NDArray[Any]) -> NDArray[np.bool_]:
        begins: NDArray[np.bool_] = (self._ids[envs] + self._facts["episode_id"][envs]) % 2 == 1
        return begins

    def _begin_episodes(self, t: int) -> None:
        """Make the moves before an episode's first row where they have not been made yet, after step t of the round.

        Raises:
            ValueError: the other side's first move ended an episode, in which the learner would have had none.
        """
        envs = np.flatnonzero(self._facts["opens"])
        if not len(envs):
            return
        self._facts["opens"][envs] = 0
        moves = self._make_random_moves(envs, self._openings[t]) if self._openings.size else np.zeros_like(envs)
        envs = envs[self._other_begins(envs) ^ (moves % 2 == 1)]
        noise = self._noise[2 * t + 1]
        ended = self._step(envs, self._moves(self._seen[envs], envs, noise))
        if self._openings.size and len(ended):
            self._begin_again(ended)
            envs = ended[self._other_begins(ended)]
            ended = self._step(envs, self._moves(self._seen[envs], envs, noise))
        if len(ended):
            raise ValueError(
                f"a first move ended an episode of {self._game.environment['id']}, expected a game in which both "
                f"players move; choose league.opponents = 'environment'"
            )

    def _make_random_moves(self, envs: NDArray[np.int64], uniform: NDArray[np.float32]) -> NDArray[np.int64]:
        """Open games at random; those that end by it are begun again, without. Returns the numbers of moves `[n]`."""
        length, *moves = uniform
        made: NDArray[np.int64] = (length[envs, 0] * (len(moves) + 1)).astype(np.int64)
        for ply, noise in enumerate(moves):
            movers = envs[made > ply]
            ended = self._step(movers, self._uniform(self._seen[movers], noise[movers]))
            self._begin_again(ended)
            made[np.isin(envs, ended)] = 0
        return made

    def _step(self, envs: NDArray[np.int64], moves: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make one move in each of these environments; returns those whose episode it ended."""
        if not len(envs):
            return envs
        self._seen[envs], _, over, cut, _ = self._game.step_rows(moves, envs)
        ended: NDArray[np.int64] = envs[over | cut]
        return ended

    def _begin_again(self, envs: NDArray[np.int64]) -> None:
        if len(envs):
            fresh, _ = self._game.reset(options={"reset_mask": np.isin(self._all, envs)})
            self._seen[envs] = fresh[envs]

    def _moves(self, seen: NDArray[Any], envs: NDArray[np.int64], noise: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the other side's moves `[n]` in these environments, each player's in one batch."""
        opponents = self._opponent[envs]
        moves = np.empty(len(envs), dtype=np.int64)
        for player in np.unique(opponents):
            rows = np.flatnonzero(opponents == player)
            moves[rows] = self._players[player](seen[rows], noise[envs[rows]])
        return moves


_PREFIX = "self_play."
"""Begins the names of a state's entries that the game did not save."""
_EPISODE = {
    "row": np.int64,
    "env": np.int64,
    "episode_id": np.int64,
    "length": np.int64,
    "return": np.float64,
    "terminated": np.uint8,
    "truncated": np.uint8,
}


def draw_players(
    seed: int, round_: int, env_ids: NDArray[np.int64], cumulative: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the index of the other side's player in each environment, int64 `[B]`.

    Args:
        seed: of the run.
        round_: counted over the run.
        env_ids: int64 `[B]`.
        cumulative: sums of the players' probabilities, float64 `[players]`; the last is 1.
    """
    drawn = np.empty((1, len(env_ids), 1), dtype=np.float32)
    fill_noise("uniform", seed, Purpose.OPPONENT, env_ids, round_, drawn)
    return np.minimum(np.searchsorted(cumulative, drawn[0, :, 0], side="right"), len(cumulative) - 1)
