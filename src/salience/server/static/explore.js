// The page on which a text is explored. The server renders the explanations; this asks for them, shows the scores of
// the word under the pointer or the keyboard in every method, and lets a word be changed.

import { $, complain, latest, option, paused, post } from "./shared.js";

const form = $("question");
const models = JSON.parse(form.dataset.models);
const families = Object.entries(JSON.parse(form.dataset.families));
const FIRST = { labels: ["integrated_gradients", "input_x_gradient", "attention"], tokens: ["lrp", "input_x_gradient"] };
let touched = false; // whether somebody has chosen methods
let shown = null; // the question that the page shows the answer to

// ------------------------------------------------------------------------------------------------ the question

const current = () => models.find((model) => model.name === $("model").value);

function fillChoices() {
  const model = current();
  const words = model.labels.length === 0;
  $("target").replaceChildren(option("", words ? "most likely token" : "the prediction"), ...model.labels.map((l) => option(l)));
  $("target").hidden = words;
  $("token").hidden = !words;
  $("label").htmlFor = words ? "token" : "target";
  $("label").textContent = words ? "Explained token" : "Explained label";
  $("against").replaceChildren(option("", "nothing"), ...model.labels.map((l) => option(l)));
  $("against").disabled = words;
  const layers = Array.from({ length: model.layers }, (_, n) => option(n + 1, `layer ${n + 1}`));
  $("layer").replaceChildren(option("", "default"), option("all", "all, as a heat map"), ...layers);
  const kept = touched ? checkedMethods().filter((name) => model.methods.includes(name)) : [];
  fillMethods(model, kept.length ? kept : words ? FIRST.tokens : FIRST.labels);
}

/** A box for each method of the model, in families. */
function fillMethods(model, chosen) {
  const groups = families.map(([family, names]) => [family, names.filter((name) => model.methods.includes(name))]);
  $("methods").replaceChildren(...groups.filter(([, names]) => names.length).map(([family, names]) => {
    const group = document.createElement("fieldset");
    const title = Object.assign(document.createElement("legend"), { textContent: family });
    group.append(title, ...names.map((name) => methodBox(name, chosen.includes(name))));
    return group;
  }));
  countMethods();
}

function countMethods() {
  $("chosen").textContent = `${checkedMethods().length} chosen`;
}

function methodBox(name, checked) {
  const label = document.createElement("label");
  const box = Object.assign(document.createElement("input"), { type: "checkbox", name: "method", value: name, checked });
  label.append(box, ` ${name}`);
  return label;
}

const checkedMethods = () => [...document.querySelectorAll("#methods input:checked")].map((box) => box.value);

function question() {
  const layer = $("layer").value;
  const target = $("target").hidden ? $("token").value : $("target").value;
  return {
    model: $("model").value,
    text: $("text").value,
    methods: checkedMethods(),
    target: target || null,
    against: $("against").value || null,
    kind: $("kind").value,
    level: $("level").value,
    view: $("view").value,
    layer: layer === "" || layer === "all" ? layer || null : Number(layer),
  };
}

// ------------------------------------------------------------------------------------------------ the answer

const explain = latest(async (signal) => {
  const asked = question();
  closeEdit();
  $("flips").replaceChildren();
  if (!asked.text.trim() || asked.methods.length === 0) {
    $("status").textContent = asked.methods.length ? "Type a text." : "Choose a method.";
    return;
  }
  $("result").setAttribute("aria-busy", "true");
  $("status").textContent = "explaining …";
  const began = performance.now();
  try {
    const answer = await post("/page/explain", asked, signal);
    const focused = focusedWord();
    $("result").innerHTML = await answer.text();
    shown = asked;
    complain();
    $("status").textContent = `explained in ${((performance.now() - began) / 1000).toFixed(2)} s`;
    prepareWords();
    if (focused >= 0) wordAt(focused)?.focus();
    if ($("attention").open) showHeads();
  } catch (error) {
    if (signal.aborted) return;
    complain(error.message);
    $("status").textContent = "";
    $("result").replaceChildren(); // it would explain something else
    closeScores();
  } finally {
    if (!signal.aborted) $("result").setAttribute("aria-busy", "false");
  }
});

const words = () => [...document.querySelectorAll("#result mark[role=button]")];
const focusedWord = () => words().indexOf(document.activeElement);
const wordAt = (place) => words()[Math.min(place, words().length - 1)];

/** Words of the first row of each article are reached with Tab and the arrow keys; Enter changes one. */
function prepareWords() {
  closeScores();
  for (const article of document.querySelectorAll("#result article")) {
    const row = [...(article.querySelector("p.text")?.querySelectorAll("mark") ?? [])];
    row.forEach((word, n) => {
      word.setAttribute("role", "button");
      word.tabIndex = n === 0 ? 0 : -1;
    });
    article.addEventListener("keydown", (event) => moveAmong(row, event));
  }
}

function moveAmong(row, event) {
  const at = row.indexOf(event.target);
  if (at < 0) return;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: row.length - 1 }[event.key];
  if (to !== undefined && row[to]) {
    event.preventDefault();
    row[at].tabIndex = -1;
    row[to].tabIndex = 0;
    row[to].focus();
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    openEdit(row[at]);
  } else if (event.key === "Escape") {
    closeScores();
  }
}

/** The scores of one word in every method and layer, read from the table of numbers below. */
function showScores(element) {
  const line = element.closest("p.text, tr");
  const article = element.closest("article");
  const table = article?.querySelector("table.numbers");
  if (!line || !table || element.closest("table.numbers")) return;
  const pieces = [...line.querySelectorAll(line.tagName === "P" ? "mark, .special" : "td")];
  const row = table.tBodies[0].rows[pieces.indexOf(element)];
  if (!row) return;
  const heads = [...table.tHead.rows[0].cells].slice(1);
  const list = document.createElement("dl");
  heads.forEach((head, n) => {
    const name = Object.assign(document.createElement("dt"), { textContent: head.textContent });
    const score = Object.assign(document.createElement("dd"), { textContent: row.cells[n + 1].textContent });
    const pair = document.createElement("div");
    pair.append(name, score);
    list.append(pair);
  });
  const word = Object.assign(document.createElement("b"), { textContent: row.cells[0].textContent });
  $("scores").replaceChildren(word, list);
  $("scores").hidden = false;
  for (const other of document.querySelectorAll(".same-word")) other.classList.remove("same-word");
  for (const other of article.querySelectorAll("p.text")) other.querySelectorAll("mark, .special")[pieces.indexOf(element)]?.classList.add("same-word");
}

function closeScores() {
  $("scores").hidden = true;
  for (const other of document.querySelectorAll(".same-word")) other.classList.remove("same-word");
}

// ------------------------------------------------------------------------------------------------ changing a word

let span = null; // the characters that are changed, in code points as Python counts them
let edited = 0; // the place of that word among the words

function openEdit(word) {
  closeScores();
  const row = [...word.closest("p.text").querySelectorAll("mark")];
  edited = Math.max(row.indexOf(word), 0);
  span = word.dataset.span.split(",").map(Number);
  const original = [...shown.text].slice(...span).join("");
  $("word").textContent = original;
  $("replacement").value = original;
  $("edited").replaceChildren();
  $("editing").hidden = false;
  $("replacement").focus();
  $("replacement").select();
}

const change = () => ({ model: shown.model, text: shown.text, start: span[0], end: span[1], replacement: $("replacement").value });

const showEdit = latest(async (signal) => {
  try {
    const answer = await post("/page/edit", change(), signal);
    $("edited").innerHTML = await answer.text();
    complain();
  } catch (error) {
    if (!signal.aborted) complain(error.message);
  }
});

function keepEdit(event) {
  event.preventDefault();
  const letters = [...shown.text];
  letters.splice(span[0], span[1] - span[0], $("replacement").value);
  $("text").value = letters.join("");
  leaveEdit();
  explain();
}

/** Hide the form for a word; what it would change is no longer shown. */
function closeEdit() {
  $("editing").hidden = true;
}

/** Hide it, and go back to the word. */
function leaveEdit() {
  closeEdit();
  wordAt(edited)?.focus();
}

const proposeFlips = latest(async (signal) => {
  const { model, text } = question();
  if (!text.trim()) return;
  $("status").textContent = "searching for minimal edits …";
  try {
    const answer = await post("/page/flip", { model, text }, signal);
    if ($("text").value === text) $("flips").innerHTML = await answer.text();
    complain();
  } catch (error) {
    if (!signal.aborted) complain(error.message);
  }
  if (!signal.aborted) $("status").textContent = "";
});

// ------------------------------------------------------------------------------------------------ attention

const showHeads = latest(async (signal) => {
  const { model, text } = question();
  if (!text.trim()) return;
  try {
    const answer = await post("/page/attention", { model, text }, signal);
    $("maps").innerHTML = await answer.text();
    $("map").replaceChildren();
    complain();
  } catch (error) {
    if (signal.aborted) return;
    $("maps").textContent = error.message;
    $("map").replaceChildren();
  }
});

const showHead = latest(async (signal, button) => {
  const { model, text } = question();
  const place = { layer: Number(button.dataset.layer), head: Number(button.dataset.head) };
  try {
    const answer = await post("/page/head", { model, text, ...place }, signal);
    $("map").innerHTML = await answer.text();
  } catch (error) {
    if (!signal.aborted) complain(error.message);
    return;
  }
  for (const other of document.querySelectorAll("#maps button")) other.setAttribute("aria-pressed", String(other === button));
});

async function startJob() {
  const { model, text, methods } = question();
  try {
    await post("/api/jobs", { work: "explain", model, texts: [text], methods });
    location.assign("/jobs");
  } catch (error) {
    complain(error.message);
  }
}

// ------------------------------------------------------------------------------------------------ events

const soon = paused(350, explain);
form.addEventListener("submit", (event) => { event.preventDefault(); explain(); });
$("model").addEventListener("change", fillChoices);
form.addEventListener("change", (event) => {
  if (event.target.id === "sample" && event.target.value) $("text").value = event.target.value;
  if (event.target.name === "method") {
    touched = true;
    countMethods();
  }
  if (event.target.id !== "text") explain();
});
$("text").addEventListener("input", soon);
$("token").addEventListener("input", soon);
$("result").addEventListener("pointerover", (event) => event.target.closest("mark, .special, .heat td") && showScores(event.target.closest("mark, .special, td")));
$("result").addEventListener("focusin", (event) => event.target.matches("mark") && showScores(event.target));
$("result").addEventListener("click", (event) => event.target.closest("mark[data-span]") && openEdit(event.target.closest("mark")));
$("replacement").addEventListener("input", paused(200, showEdit));
$("edit").addEventListener("submit", keepEdit);
$("edit").addEventListener("keydown", (event) => event.key === "Escape" && leaveEdit());
$("cancel").addEventListener("click", leaveEdit);
$("flip").addEventListener("click", proposeFlips);
$("flips").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-text]");
  if (button) { $("text").value = button.dataset.text; explain(); }
});
$("background").addEventListener("click", startJob);
$("attention").addEventListener("toggle", () => $("attention").open && showHeads());
$("maps").addEventListener("click", (event) => event.target.closest("button") && showHead(event.target.closest("button")));

if (matchMedia("(max-width: 40rem)").matches) for (const more of document.querySelectorAll("details.more")) more.open = false;
fillChoices();
if ($("text").value.trim()) explain();
