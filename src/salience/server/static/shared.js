// What the pages share: requests, errors, and a pause before the next request while somebody types.

export const $ = (id) => document.getElementById(id);

/** Ask the server; returns the answer, or throws an Error with the server's message. */
export async function ask(url, options = {}) {
  const answer = await fetch(url, options).catch((error) => {
    throw options.signal?.aborted ? error : new Error("The server does not answer. Is it still running?");
  });
  if (!answer.ok) throw new Error(await problemOf(answer));
  return answer;
}

/** Send JSON. */
export function post(url, body, signal) {
  return ask(url, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
}

async function problemOf(answer) {
  const body = await answer.json().catch(() => ({}));
  return body.detail ?? `the server answered ${answer.status}`;
}

/** A function that runs once nothing has called it for some milliseconds. */
export function paused(milliseconds, run) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), milliseconds);
  };
}

/** A function that runs one request at a time: a new one ends the one before. */
export function latest(run) {
  let controller;
  return async (...values) => {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller;
    try {
      await run(signal, ...values);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  };
}

/** Show or hide the message of an error. */
export function complain(message) {
  const place = $("problem");
  place.hidden = !message;
  place.textContent = message ?? "";
}

export function option(value, text = value) {
  return new Option(text, value);
}

/** Ask for the state of a job once a second until it has ended. */
export async function follow(id, show) {
  for (;;) {
    const job = await (await ask(`/api/jobs/${id}`)).json();
    show(job);
    if (!["waiting", "running"].includes(job.state)) return;
    await new Promise((resume) => setTimeout(resume, 1000));
  }
}
