// The list of background jobs: how far each is, a button to cancel it, a link to its result.

import { $, complain, option, post } from "./shared.js";

function row(job) {
  const line = document.createElement("tr");
  const name = Object.assign(document.createElement("th"), { scope: "row", textContent: job.work });
  const state = Object.assign(document.createElement("td"), { textContent: job.message ? `${job.state}: ${job.message}` : job.state });
  line.append(name, state, cell(progress(job)), cell(outcome(job)));
  return line;
}

function cell(content) {
  const made = document.createElement("td");
  made.append(content);
  return made;
}

function progress(job) {
  if (job.state !== "running") return "";
  const bar = document.createElement("progress");
  bar.setAttribute("aria-label", `progress of ${job.work}`);
  if (job.total) Object.assign(bar, { max: job.total, value: job.done });
  return bar;
}

function outcome(job) {
  if (job.state === "done") return Object.assign(document.createElement("a"), { href: job.result, textContent: "show" });
  if (job.state !== "waiting" && job.state !== "running") return "";
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Cancel" });
  button.setAttribute("aria-label", `cancel ${job.work}`);
  button.addEventListener("click", async () => { await fetch(`/api/jobs/${job.id}`, { method: "DELETE" }); show(); });
  return button;
}

async function show() {
  const jobs = await (await fetch("/api/jobs")).json();
  $("jobs").replaceChildren(...jobs.map(row));
  $("none").hidden = jobs.length > 0;
  return jobs.some((job) => job.state === "waiting" || job.state === "running");
}

async function watch() {
  while (await show()) await new Promise((resume) => setTimeout(resume, 1000));
}

async function start(event) {
  event.preventDefault();
  const texts = $("texts").value.split("\n").map((line) => line.trim()).filter(Boolean);
  try {
    await post("/api/jobs", { work: $("work").value, model: $("model").value, texts });
    complain();
    watch();
  } catch (error) {
    complain(error.message);
  }
}

const models = await (await fetch("/api/models")).json();
$("model").replaceChildren(...models.filter((model) => model.kind !== "encoder-decoder").map((model) => option(model.name)));
$("start").addEventListener("submit", start);
watch();
