// The page on which a text is explored. The server renders the explanations; this asks for them, shows the scores of
// the word under the pointer or the keyboard in every method, and lets a word be changed.

import { $, complain, latest, option, paused, post } from "./shared.js";

const form = $("question");
const models = JSON.parse(form.dataset.models);
const FIRST = ["integrated_gradients", "input_x_gradient", "attention"];
let shown = null; // the question that the page shows the answer to

// ------------------------------------------------------------------------------------------------ the question

const current = () => models.find((model) => model.name === $("model").value);

function fillChoices() {
  const model = current();
  const words = model.labels.length === 0;
  $("target").replaceChildren(option("", words ? "most likely token" : "the prediction"), ...model.labels.map((l) => option(l)));
  $("target").hidden = words;
  $("token").hidden = !words;
  document.querySelector('label[for="target"]').htmlFor = "target";
  $("against").replaceChildren(option("", "nothing"), ...model.labels.map((l) => option(l)));
  $("against").disabled = words;
  const layers = Array.from({ length: model.layers }, (_, n) => option(n + 1, `layer ${n + 1}`));
  $("layer").replaceChildren(option("", "as the method chooses"), option("all", "all, as a heat map"), ...layers);
  const chosen = new Set(checkedMethods());
  $("methods").replaceChildren(...model.methods.map((name) => methodBox(name, chosen.size ? chosen.has(name) : FIRST.includes(name))));
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
  if (!asked.text.trim() || asked.methods.length === 0) {
    $("status").textContent = asked.methods.length ? "Type a text." : "Choose a method.";
    return;
  }
  $("result").setAttribute("aria-busy", "true");
  $("status").textContent = "explaining …";
  const began = performance.now();
  try {
    const answer = await post("/page/explain", asked, signal);
    $("result").innerHTML = await answer.text();
    shown = asked;
    complain();
    $("status").textContent = `explained in ${((performance.now() - began) / 1000).toFixed(2)} s`;
    prepareWords();
    if ($("attention").open) showHeads();
  } catch (error) {
    if (signal.aborted) return;
    complain(error.message);
    $("status").textContent = "";
  } finally {
    if (!signal.aborted) $("result").setAttribute("aria-busy", "false");
  }
});

/** Words of the first row of each article are reached with Tab and the arrow keys; Enter changes one. */
function prepareWords() {
  closeScores();
  for (const article of document.querySelectorAll("#result article")) {
    const words = [...article.querySelectorAll("p.text:first-of-type")].slice(0, 1).flatMap((p) => [...p.querySelectorAll("mark")]);
    words.forEach((word, n) => {
      word.setAttribute("role", "button");
      word.tabIndex = n === 0 ? 0 : -1;
    });
    article.addEventListener("keydown", (event) => moveAmong(words, event));
  }
}

function moveAmong(words, event) {
  const at = words.indexOf(event.target);
  if (at < 0) return;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: words.length - 1 }[event.key];
  if (to !== undefined && words[to]) {
    event.preventDefault();
    words[at].tabIndex = -1;
    words[to].tabIndex = 0;
    words[to].focus();
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    openEdit(words[at]);
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
    list.append(name, score);
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

function openEdit(word) {
  closeScores();
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
  closeEdit();
  explain();
}

function closeEdit() {
  $("editing").hidden = true;
  document.querySelector('#result mark[tabindex="0"]')?.focus();
}

async function proposeFlips() {
  $("status").textContent = "searching for small edits …";
  try {
    const { model, text } = question();
    const answer = await post("/page/flip", { model, text });
    $("flips").innerHTML = await answer.text();
    complain();
    $("status").textContent = "";
  } catch (error) {
    complain(error.message);
  }
}

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
    if (!signal.aborted) $("maps").textContent = error.message;
  }
});

const showHead = latest(async (signal, button) => {
  const { model, text } = question();
  const place = { layer: Number(button.dataset.layer), head: Number(button.dataset.head) };
  const answer = await post("/page/head", { model, text, ...place }, signal);
  $("map").innerHTML = await answer.text();
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
  if (event.target.id !== "text") explain();
});
$("text").addEventListener("input", soon);
$("token").addEventListener("input", soon);
$("result").addEventListener("pointerover", (event) => event.target.closest("mark, .special, .heat td") && showScores(event.target.closest("mark, .special, td")));
$("result").addEventListener("focusin", (event) => event.target.matches("mark") && showScores(event.target));
$("result").addEventListener("click", (event) => event.target.closest("mark[data-span]") && openEdit(event.target.closest("mark")));
$("replacement").addEventListener("input", paused(200, showEdit));
$("edit").addEventListener("submit", keepEdit);
$("edit").addEventListener("keydown", (event) => event.key === "Escape" && closeEdit());
$("cancel").addEventListener("click", closeEdit);
$("flip")?.addEventListener("click", proposeFlips);
$("flips").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-text]");
  if (button) { $("text").value = button.dataset.text; explain(); }
});
$("background").addEventListener("click", startJob);
$("attention").addEventListener("toggle", () => $("attention").open && showHeads());
$("maps").addEventListener("click", (event) => event.target.closest("button") && showHead(event.target.closest("button")));

fillChoices();
if ($("text").value.trim()) explain();
