"""The prompt: think first, search only if needed, reflect, answer."""

INSTRUCTIONS = {
  "paper": (
    "Answer the question by this protocol.\n"
    "1. Begin with <think> … </think>: a short sketch of the reasoning, from what you know yourself. Do not take it "
    "for granted that tools are needed.\n"
    "2. If what you know is enough, sum it up in <reflect> … </reflect> and give the answer in <answer> … </answer>. "
    "In that case you must not search.\n"
    "3. Only if what you know is really not enough, write a query in <search> … </search>: a few keywords with names, "
    "dates, places and concepts, as brief as possible, and no question in natural language.\n"
    "4. What is found comes back in <information> … </information>. If it is reliable and enough, put it together with "
    "your reasoning in <reflect> … </reflect>, then answer.\n"
    "5. If it is not enough, or contradicts what you know, say so in <reflect> … </reflect>, and search again with "
    "another query if that is necessary.\n"
    "6. The answer in <answer> … </answer> is short and clear. Your own reasoning comes first; a search is the last "
    "resort.\n"
    "Question: {question}\n"
  ),
  "short": (
    "First <think> </think>. If you know the answer: <reflect> </reflect><answer> </answer>. Else "
    "<search> keywords </search>, then <reflect> </reflect> on what was found, and search again or answer.\n"
    "Question: {question}\n"
  ),
  "none": "{question}",
}
