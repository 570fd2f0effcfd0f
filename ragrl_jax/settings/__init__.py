"""Every setting of a run with type, default, meaning, unit and allowed values. `config.py` makes a ConfigDict of them.

A section is a frozen dataclass that checks itself when it is made: first each field, then the relations between fields
(`rules`). The sections are in `playing.py` and `learning.py`, in the order of `Settings`. Read `config.py` next.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.settings import fields, learning
from ragrl_jax.settings.fields import Rules, Section, setting
from ragrl_jax.settings.playing import (
  DTYPES as DTYPES,
  FAMILIES as FAMILIES,
  JUDGES as JUDGES,
  MAX_PROMPTS as MAX_PROMPTS,
  PREFILL_ROWS as PREFILL_ROWS,
  Data,
  Endpoint,
  Filter as Filter,
  Judge,
  Model,
  Prompting,
  Retrieval,
  Rollout,
)


@dataclasses.dataclass(frozen=True)
class Settings(Section):
  """All settings of a run. A file under configs/ contains only the values that differ from these defaults."""

  recipe: str = setting("search_r1", "a name in ragrl_jax.recipes")
  preset: str = setting("paper", "one of the recipe's presets, or several joined by commas")
  switches: Mapping[str, Any] = fields.mapping("the recipe's switches; they override the preset's")
  seed: int = setting(0, "seed of weights, questions and samples", least=0, most=2**32 - 1)  # JAX drops the higher bits
  steps: int = setting(100, "steps of training: batches of episodes, or of transcripts", unit="steps", least=1)
  model: Model = Model()
  prompting: Prompting = Prompting()
  data: Data = Data()
  retrieval: Retrieval = Retrieval()
  judge: Judge = Judge()
  judges: Mapping[str, Mapping[str, Any]] = fields.mapping("term → fields of `judge` that differ for it")
  rollout: Rollout = Rollout()
  advantage: learning.Advantage = learning.Advantage()
  loss: learning.Loss = learning.Loss()
  critic: learning.Critic = learning.Critic()
  reward: learning.Reward = learning.Reward()
  optimizer: learning.Optimizer = learning.Optimizer()
  learner: learning.Learner = learning.Learner()
  mesh: learning.Mesh = learning.Mesh()
  checkpoint: learning.Checkpoint = learning.Checkpoint()
  guard: learning.Guard = learning.Guard()
  evaluate: learning.Evaluate = learning.Evaluate()
  endpoint: Endpoint = Endpoint()
  log: learning.Log = learning.Log()
  sft: learning.SFT = learning.SFT()

  def rules(self) -> Rules:
    yield from self._judges()
    rollout, advantage, loss = self.rollout, self.advantage, self.loss
    yield (
      not advantage.compares or rollout.group_size > 1,
      f"config.rollout.group_size=1 with config.advantage.kind={advantage.kind!r}: a group of one has no spread and "
      "teaches nothing. Raise group_size.",
    )
    yield (
      not loss.teacher.remote or rollout.temperature == 1.0,
      f"config.rollout.temperature={rollout.temperature} with a teacher behind a server: its log-probabilities are at "
      "temperature 1, and would be compared with the policy's at another one. Set the temperature to 1.",
    )
    yield (
      loss.minibatches <= rollout.prompts_per_step,
      f"config.loss.minibatches={loss.minibatches}: each needs a prompt of config.rollout.prompts_per_step="
      f"{rollout.prompts_per_step}.",
    )

  def _judges(self) -> Rules:
    names = [field.name for field in dataclasses.fields(Judge)]
    for term, changes in self.judges.items():
      unknown = sorted(changes.keys() - set(names))
      yield not unknown, f"config.judges.{term} sets {', '.join(unknown)}: use fields of config.judge."
      for name, value in changes.items():
        must = None if value is None else fields.must_be(Judge, name, value)
        yield must is None, f"config.judges.{term}.{name}={value!r}: it must be {must}."


def of(config: Any) -> Settings:
  """The typed settings of a ConfigDict, or of nested mappings. They are checked, and nothing is loaded.

  Typed settings are returned as they are, so each function of `jobs/` takes either.

  Raises:
    ValueError: the message has the field's path, its value and what it must be.
  """
  if isinstance(config, Settings):
    return config
  return fields.build(Settings, config.to_dict() if hasattr(config, "to_dict") else config, "config")
