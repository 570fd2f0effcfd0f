"""The prompt: the question, and how to answer it. The model's own chat template shows the tools."""

INSTRUCTIONS = {
  "paper": (
    "Answer the question below. Whatever you do not know for certain, look up or work out with the tools that you "
    "have, as often as it takes; several calls may stand in one turn. As soon as nothing more is needed, call no tool "
    "and give the answer, short and without explanations, between <answer> and </answer>, like this: "
    "<answer> Lisbon </answer>.\nQuestion: {question}"
  ),
  "short": "Use your tools, then answer in <answer> </answer>.\nQuestion: {question}",
  "none": "{question}",
}
