// The list of background jobs: how far each is, a button to cancel it, a link to its result.

import { $, ask, complain, post } from "./shared.js";

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
  button.addEventListener("click", () => cancel(job));
  return button;
}

async function cancel(job) {
  try {
    await ask(`/api/jobs/${job.id}`, { method: "DELETE" });
    await show();
  } catch (error) {
    complain(error.message);
  }
}

async function show() {
  const jobs = await (await ask("/api/jobs")).json();
  $("jobs").replaceChildren(...jobs.map(row));
  $("none").hidden = jobs.length > 0;
  return jobs.some((job) => job.state === "waiting" || job.state === "running");
}

let watching = false;

/** Show the jobs once a second until all have ended. */
async function watch() {
  if (watching) return;
  watching = true;
  try {
    while (await show()) await new Promise((resume) => setTimeout(resume, 1000));
  } catch (error) {
    complain(error.message);
  }
  watching = false;
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

$("start").addEventListener("submit", start);
watch();
