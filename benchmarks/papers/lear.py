"""LEAR in miniature: the value of evidence without the passages, its length, and the answers that need a reward.

Questions have 4 to 14 passages in the demonstrations and 8 in RL, most about the same names or relations. Planted: of
the demonstrations, nearly half stop at the first of two hops, some find the answer and keep only the first fact as
evidence, and some copy passages more. The model has seen prompts with given evidence, as in the separate answers: it
answers from whole chains, and says "unknown" where a fact is missing, so that missing evidence costs reward.

There is one warm start for all replies. A fifth of the demonstrations have no reason; their prompts begin with
"<extract>", as those of the arm that extracts directly do. The warm start ends when some sampled replies to two hops
are right, as RL learns from these.
"""

import dataclasses
import random

import reading_world
from papers.miniature import DEVELOPMENT, SAMPLED, TEST, WARM, WARM_EM, Claim, Paper, Side, mixed_in

from ragrl_jax.data import synthetic
from ragrl_jax.recipes.lear import prompt as prompt_lib
from ragrl_jax.run import questions as questions_lib
from ragrl_jax.structs import ENVIRONMENT, MODEL

GIVEN, MIX = 8, {1: 3, 2: 7}  # passages of a question, and its number of hops
DIRECT = "<extract> "  # begins the prompt of a reply without a reason
FAULTS = {"": 3, "stop": 5, "thin": 2, "copy": 1}  # weights; see `demonstrate`
SHOWN = (4, 6, 8, 8, 10, 14)  # passages of a demonstration
STEPS = 28  # until the learning rate is a tenth
GIVEN_REASONS = 0.15  # of demonstrations: the reason is given and the evidence left out, as in a separate answer
SOME = 0.15  # right answers to two hops among sampled replies, at the end of the warm start
READ = prompt_lib.Parser()


def questions(world, seed):
  """Demonstrations have up to as many passages as the test with the most noise."""
  ask = lambda count, draw, passages=GIVEN, mix=MIX, **options: reading_world.questions(
    world, count, mix=mix, seed=draw, passages=passages, **options
  )
  lines = [
    example for draw, given in enumerate(SHOWN) for example in ask(1000, 100 * seed + draw, given, distinct=False)
  ]
  alone = [
    dataclasses.replace(example, passages=(), supporting=(), evidence=())
    for example in ask(2500, 100 * seed + 40, distinct=False)
  ]
  held_out = ask(TEST, seed, part=synthetic.HELD_OUT)
  return dict(
    train=ask(4000, 100 * seed + 50, distinct=False),
    demonstrations=mixed_in(lines + alone, DIRECT),
    development=ask(DEVELOPMENT, seed, mix={1: 1, 2: 1}, part=synthetic.DEVELOPMENT, distinct=False),
    held_out=held_out,
    full=held_out,
    **{f"noise_{count}": questions_lib.with_noise(held_out, count, seed=seed) for count in (4, 8)},
  )


def demonstrate(example, world, search, rng: random.Random):
  """The scripted reply. The reason looks up one hop after the other, and the evidence repeats these facts.

  Without passages, the evidence is given and the reply is only the answer, as in an answer from the evidence alone: the
  name, or "unknown" if a fact was left out.

  Faults: "stop" answers the first of two hops; "thin" finds the answer and keeps only the first fact as evidence, which
  does not contain it; "copy" copies up to three passages more as evidence.
  """
  del world, search
  hops = example.meta["decomposition"]
  if not example.passages:
    given = rng.sample(hops, len(hops) - (len(hops) > 1 and rng.random() < 0.4))
    answer = hops[-1]["object"] if len(given) == len(hops) else "unknown"
    text = " ".join(hop["sentence"] for hop in given)
    return [(ENVIRONMENT, f"<extract> {text} </extract>\n"), (MODEL, f"<answer> {answer} </answer>")]
  (fault,) = rng.choices(list(FAULTS), list(FAULTS.values()))
  hops = hops[:1] if fault == "stop" else hops
  kept = hops[:1] if fault == "thin" else hops
  others = [passage for passage in example.passages if passage.id not in {hop["passage"] for hop in kept}]
  spare = rng.sample(others, min(3, len(others))) if fault == "copy" else []
  bodies = dict(
    reason=" ".join(hop["sentence"] for hop in hops),
    extract=" ".join([*(hop["sentence"] for hop in kept), *(passage.text for passage in spare)]),
    answer=hops[-1]["object"],
  )
  direct = example.question.startswith(DIRECT)
  if not direct and rng.random() < GIVEN_REASONS:
    return [
      (ENVIRONMENT, f"<reason> {bodies['reason']} </reason>\n"),
      (MODEL, f"<answer> {bodies['answer']} </answer>"),
    ]
  reply = prompt_lib.SECTIONS["vanilla" if direct else "rational"]
  return [(MODEL, "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in reply))]


def measure(world, example, episode):
  """Measures of the evidence: whether it states each fact that the question needs, sentences copied without need, and
  sentences that no passage contains, according to the world's facts.
  """
  said = READ.section(episode.model_text, "extract") or ""
  needed = {hop["sentence"] for hop in example.meta["decomposition"]}
  given = {passage.text for passage in example.passages}
  wrote = [sentence.strip() + "." for sentence in said.split(".") if sentence.strip()]
  return dict(
    evidence_tokens=episode.facts["evidence_tokens"],
    states_all=float(all(sentence in said for sentence in needed)),
    spare=float(sum(sentence in given - needed for sentence in wrote)),
    made_up=sum(sentence not in given for sentence in wrote) / len(wrote) if wrote else None,
  )


ALONE = dict(stop_at="extract", answers="e")  # the answer from the evidence alone
FULL, FOUR, EIGHT = "full", "noise_4", "noise_8"
CLAIMS = [
  Claim(
    "EM from the evidence alone is within 3 points of the same model's with all passages before it",
    Side("paper", "em"),
    Side("paper", "em", FULL),
    least=-0.03,
  ),
  Claim("at a compression of 5 or more (passages / evidence, sums of tokens)", Side("paper", "compression_total"), 5.0),
  Claim("RL raises EM from the evidence", Side("paper", "em"), Side(WARM, "em"), least=0.1),
  Claim(
    "RL raises the share of evidence that states every fact needed",
    Side("paper", "states_all"),
    Side(WARM, "states_all"),
    least=0.1,
    short=True,
  ),
  *(
    Claim(
      f"reasoning first beats direct extraction, {said}: EM from the evidence",
      Side("paper", "em", test),
      Side("direct", "em", test),
      least=0.02,
    )
    for said, test in (("no noise", "held_out"), ("4 noise passages", FOUR), ("8 noise passages", EIGHT))
  ),
  Claim(
    "with 8 noise passages, EM from the evidence exceeds that of direct extraction without noise",
    Side("paper", "em", EIGHT),
    Side("direct", "em"),
  ),
  *(
    Claim(
      f"EM from the evidence is higher with rewards for three answers than with a reward for {said} alone",
      Side("paper", "em"),
      Side(f"answers_{letter}", "em"),
      least=0.02,
    )
    for letter, said in (
      ("r", "the answer from the reason"),
      ("e", "the answer from the evidence"),
      ("f", "the full answer"),
    )
  ),
  Claim(
    "… and the evidence states every fact needed more often than with a reward for the full answer alone",
    Side("paper", "states_all"),
    Side("answers_f", "states_all"),
  ),
  Claim(
    "the length reward shortens the evidence (tokens)",
    Side("paper", "evidence_tokens"),
    Side("no_length", "evidence_tokens"),
    lower=True,
  ),
  Claim("… and costs no EM from the evidence", Side("paper", "em"), Side("no_length", "em"), least=-0.03),
]

PAPER = Paper(
  name="lear",
  world={},
  questions=questions,
  demonstrate=demonstrate,
  base=dict(
    switches=dict(instructions="none", titles=False, probe_tokens=12),
    rollout=dict(
      prompts_per_step=16, group_size=8, lanes=32, rows=192, context=384, chunk=24, prefill=64, max_new_tokens=144
    ),
  ),
  sft=dict(learner=dict(micro_rows=8, row_lengths=(512,), logprob_chunk=2048)),
  rl=dict(
    steps=STEPS,
    checkpoint=dict(every=8),
    learner=dict(micro_rows=4, row_lengths=(1024,), share_prompts=True, logprob_chunk=2048),
    advantage=dict(std="population", std_floor=0.1, eps=0.0),
    loss=dict(aggregation="seq_mean_token_mean", kl="k3", kl_coef=1e-2),
    optimizer=dict(learning_rate=7e-4, warmup_steps=3, schedule="linear", weight_decay=0.01, b2=0.98),
  ),
  arms={
    "paper": {},
    "no_length": dict(switches=dict(length_weight=0.0)),
    **{f"answers_{letter}": dict(switches=dict(answers=letter)) for letter in "ref"},
    "direct": dict(
      switches=dict(
        # With these weights, no reply with a reason, however right, gets more than one without.
        reply="vanilla",
        instructions="file:direct.txt",
        answers="ef",
        answer_weight=0.5,
        format_weight=0.4,
      )
    ),
  },
  tests=dict(held_out=ALONE, full=dict(answers="f"), noise_4=ALONE, noise_8=ALONE),
  measure=measure,
  claims=CLAIMS,
  wordings={"direct.txt": f"{DIRECT}{{question}}\n{{passages}}"},
  settles=False,
  warm={"by_hops/1/em": WARM_EM, f"by_hops/2/em{SAMPLED}": SOME},
  shown=("em", "evidence_tokens"),
  short_hops=1,  # in a few steps, two hops are not learnt: few sampled replies are right at first
)
