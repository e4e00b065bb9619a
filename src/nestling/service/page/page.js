"use strict";
const by = (id) => document.getElementById(id);
const [form, file, drop, shown, answer] = ["form", "file", "drop", "shown", "answer"].map(by);
let image = null;

function made(tag, text, options = {}) {
  const node = Object.assign(document.createElement(tag), options);
  if (text !== null) node.textContent = text;
  return node;
}

function choose(found) {
  if (!found) return;
  image = found;
  URL.revokeObjectURL(shown.src);
  shown.src = URL.createObjectURL(found);
  shown.hidden = false;
}

function show(found) {
  const parts = [];
  if (found.answered === false) {
    parts.push(made("p", "I don't know", { className: "class" }));
    parts.push(made("p", "The last width of the cascade is too unsure. This is what it thinks:", { className: "soft" }));
  } else if ("class" in found) {
    parts.push(made("p", `${found.class} · ${(100 * found.probability).toFixed(1)} %`, { className: "class" }));
  }
  const facts = [["width", found.width], ["time", `${found.ms.toFixed(1)} ms`]];
  for (const [name, nats] of Object.entries(found.uncertainty || {})) facts.push([name, `${nats.toFixed(3)} nats`]);
  for (const [coverage, names] of Object.entries(found.sets || {})) {
    facts.push([`${+(100 * coverage).toFixed(2)} % set`, names.join(", ") || "empty: no class fits"]);
  }
  const list = made("dl", null);
  for (const [name, value] of facts) list.append(made("dt", name), made("dd", value));
  parts.push(list);
  const rows = Object.entries(found.probabilities || {}).sort((a, b) => b[1] - a[1]).slice(0, 10);
  const bars = made("ol", null);
  for (const [name, share] of rows) {
    const row = made("li", null);
    const words = made("span", null);
    words.append(made("span", name), made("span", `${(100 * share).toFixed(1)} %`));
    row.append(words, made("meter", null, { value: share, ariaLabel: name }));
    bars.append(row);
  }
  if (rows.length) parts.push(bars);
  answer.replaceChildren(...parts);
}

function fail(reason) {
  answer.replaceChildren(made("p", reason, { className: "error" }));
}

file.addEventListener("change", () => choose(file.files[0]));
drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  choose(event.dataTransfer.files[0]);
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!image) { fail("Choose an image first."); file.focus(); return; }
  const headers = { "Content-Type": "application/octet-stream" };
  if (by("token").value) headers.Authorization = `Bearer ${by("token").value}`;
  const wish = by("width").value;
  try {
    const response = await fetch(wish ? `predict?${wish}` : "predict", { method: "POST", body: image, headers });
    const found = await response.json();
    if (response.ok) show(found); else fail(found.error);
  } catch (error) {
    fail(`The service did not answer: ${error.message}`);
  }
});
