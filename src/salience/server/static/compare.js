// One text, explained by two models side by side.

import { $, complain, latest, post } from "./shared.js";

const compare = latest(async (signal) => {
  $("result").setAttribute("aria-busy", "true");
  $("status").textContent = "comparing …";
  const asked = { text: $("text").value, models: [$("one").value, $("other").value], methods: [$("method").value] };
  try {
    const answer = await post("/page/compare", asked, signal);
    $("result").innerHTML = await answer.text();
    complain();
  } catch (error) {
    if (!signal.aborted) complain(error.message);
  }
  if (signal.aborted) return;
  $("status").textContent = "";
  $("result").setAttribute("aria-busy", "false");
});

$("question").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
for (const id of ["one", "other", "method"]) $(id).addEventListener("change", compare);
compare();
