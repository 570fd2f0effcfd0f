"""Made-up towns: rows of reading comprehension, and a model folder whose tokenizer reads them."""

import json

import hf_folders
import small_tokenizers

SIZES = dict(
  model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=32, intermediate_size=48, num_hidden_layers=2,
  num_attention_heads=2, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, rope_theta=1e4,
)  # fmt: skip
TOWNS = ("Arden", "Brill", "Corby", "Dorne", "Esker", "Forde", "Girvan", "Hythe", "Irvine", "Jarrow")
FACTS = dict(
  mayor="The mayor of {} is {} Miller.", river="The river of {} is the {} Water.", hill="The hill of {} is {} Law.",
  church="The oldest church of {} is called Saint {}.",
)  # fmt: skip


def make(folder):
  """(folder of a tiny model, file of rows): an article for each town, each of its sentences with a question."""
  model = small_tokenizers.byte_level(folder / "model")
  vocabulary = json.loads((model / "tokenizer.json").read_text())
  sizes = SIZES | dict(vocab_size=len(vocabulary["model"]["vocab"]) + len(vocabulary["added_tokens"]))
  config = hf_folders.COMMON | sizes | dict(max_position_embeddings=2048)
  hf_folders.write(model, config, hf_folders.decoder_shapes(config))
  lines = []
  for place, town in enumerate(TOWNS):
    said = {what: text.format(town, TOWNS[place - 1 - i] + what) for i, (what, text) in enumerate(FACTS.items())}
    passage = dict(id=town, title=town, text=" ".join(said.values()))
    other = dict(id=f"{town} 2", title=town, text=f"{town} lies near the sea. Many people visit {town} every year.")
    for number, what in enumerate(FACTS):
      passages = [passage] if number else [passage, other]
      answer = TOWNS[place - 1 - number] + what
      row = dict(id=f"{town}-{what}", question=f"What is the {what} of {town} called?", answers=[answer])
      lines.append(json.dumps(row | dict(passages=passages, supporting=[0], hops=1)))
  (folder / "rows.jsonl").write_text("\n".join(lines))
  return model, folder / "rows.jsonl"
