// The page on which the answer of a language model is explored. Which words made which is in the style of each article;
// a click moves the focus to a word, which keeps it chosen.

import { $, complain, latest, option, post } from "./shared.js";

const methods = JSON.parse($("question").dataset.methods);

function fillMethods() {
  $("method").replaceChildren(...methods[$("model").value].map((name) => option(name)));
}

/** The messages of a chat, if the text is written as one: lines that begin with a role. */
export function messagesOf(text) {
  const parts = text.split(/^(user|assistant|system):/m);
  if (parts.length < 3 || parts[0].trim()) return null;
  const messages = [];
  for (let n = 1; n < parts.length; n += 2) messages.push({ role: parts[n], content: parts[n + 1].trim() });
  return messages;
}

function question() {
  const text = $("prompt").value;
  const messages = messagesOf(text);
  return {
    model: $("model").value,
    ...(messages ? { messages } : { prompt: text }),
    answer: $("answer").value || null,
    method: $("method").value,
    tokens: Number($("tokens").value),
    by: $("by").value || null,
    level: $("level").value,
    through_answer: $("through").checked,
  };
}

const explain = latest(async (signal) => {
  $("result").setAttribute("aria-busy", "true");
  $("status").textContent = "answering …";
  try {
    const answer = await post("/page/answer", question(), signal);
    $("result").innerHTML = await answer.text();
    $("status").textContent = "";
    complain();
  } catch (error) {
    if (signal.aborted) return;
    complain(error.message);
    $("status").textContent = "";
    $("result").replaceChildren();
  } finally {
    if (!signal.aborted) $("result").setAttribute("aria-busy", "false");
  }
});

$("question").addEventListener("submit", (event) => { event.preventDefault(); explain(); });
$("model").addEventListener("change", fillMethods);
$("result").addEventListener("click", (event) => event.target.closest("mark")?.focus());
fillMethods();
