"""The prompt: reason about new information, search for what is missing, then answer, each in its tags."""

INSTRUCTIONS = {
  "paper": (
    "Answer the question below. Reason between <think> and </think> first, and again every time new information has "
    "come in. If you find that you lack knowledge, call a search engine with <search> your query </search>; its best "
    "results come back between <information> and </information>. You may search as often as you like. Once no more "
    "knowledge is needed, put the answer between <answer> and </answer>, without any detail around it. For example, "
    "<answer> Lisbon </answer>. Question: {question}\n"
  ),
  "short": (
    "Reason in <think> </think> about everything new, search with <search> query </search>, answer in "
    "<answer> </answer>.\nQuestion: {question}\n"
  ),
  "none": "{question}",
}
