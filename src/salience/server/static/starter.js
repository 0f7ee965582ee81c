// Starts one background job, shows how far it is, and opens its result.

import { $, complain, follow, post } from "./shared.js";

async function start(event) {
  event.preventDefault();
  const { work, run, other } = event.target.dataset;
  const button = event.target.querySelector("button");
  button.disabled = true;
  complain();
  try {
    const job = await (await post("/api/jobs", { work, run, other: other ?? "" })).json();
    $("progress").hidden = false;
    await follow(job.id, (now) => {
      $("progress").max = now.total || 1;
      if (now.total) $("progress").value = now.done;
      $("status").textContent = now.total ? `${now.done.toLocaleString("en")} of ${now.total.toLocaleString("en")}` : now.state;
      if (now.state === "done") location.assign(now.result);
      if (now.state === "failed") complain(now.message);
    });
  } catch (error) {
    complain(error.message);
  }
  button.disabled = false;
  $("progress").hidden = true;
}

$("starter").addEventListener("submit", start);
