"""The prompt: think, search, read, answer, each in its tags."""

INSTRUCTIONS = {
  "paper": (
    "You will be asked a question. Whenever you have read something new, the question included, reason about it first, "
    "between <think> and </think>. If a piece of knowledge is missing, ask the search engine for it: write "
    "<search> your query </search>, and the best results come back between <information> and </information>. Search "
    "as many times as it takes. As soon as nothing more is needed, give the answer, short and without explanations, "
    "between <answer> and </answer>, like this: <answer> Lisbon </answer>.\nQuestion: {question}\n"
  ),
  "short": (
    "Reason in <think> </think>, search with <search> query </search>, answer in <answer> </answer>.\n"
    "Question: {question}\n"
  ),
  "no_search": (
    "You will be asked a question. Reason about it first, between <think> and </think>. Then give the answer, short "
    "and without explanations, between <answer> and </answer>, like this: <answer> Lisbon </answer>.\n"
    "Question: {question}\n"
  ),
  "browse": (
    "You will be asked a question. Whenever you have read something new, the question included, reason about it first, "
    "between <think> and </think>. If a piece of knowledge is missing, ask the search engine for it: write "
    "<search> your query </search>, and the best results come back between <information> and </information>, numbered "
    "Doc 1, Doc 2 and so on. To read more of the document that a result is from, write its number: <open> 2 </open>. "
    "To find words in the document that you have opened, write <find> the words </find>. As soon as nothing more is "
    "needed, give the answer, short and without explanations, between <answer> and </answer>, like this: "
    "<answer> Lisbon </answer>.\nQuestion: {question}\n"
  ),
  "none": "{question}",
}

# The environment's text after a turn without a valid action, if documents can be opened.
BROWSE_NOTICE = (
  "\nThat was no valid action. To search, I put a query between <search> and </search>; to read on, a result's number "
  "between <open> and </open>; to find words in the open document, the words between <find> and </find>; to answer, I "
  "put the answer between <answer> and </answer>. Another try.\n"
)
