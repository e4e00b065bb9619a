"use strict";
// Puts the chosen network into the page: its words, panels, bars and marks.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const slider = document.getElementById("budget");
  const all = (selector) => Array.from(document.querySelectorAll(selector));

  function choose(number) {
    const { words, layers } = data.networks[number];
    slider.value = number;
    slider.setAttribute("aria-valuetext", words.budget);
    for (const place of all("[data-words]")) place.textContent = words[place.dataset.words] ?? "";
    for (const panel of all("[data-network]")) panel.hidden = panel.dataset.network !== String(number);
    for (const row of all("[data-layer]")) {
      row.querySelector(".fill").style.width = `${100 * layers[row.dataset.layer]}%`;
    }
    for (const mark of all("[data-places]")) {
      const place = mark.dataset.places.split(" ")[number];
      const [x, y] = place === "-" ? [0, 0] : place.split(",");
      mark.style.display = place === "-" ? "none" : "";
      mark.querySelector(".cursor-line").setAttribute("transform", `translate(${x} 0)`);
      mark.querySelector(".cursor-ring").setAttribute("transform", `translate(${x} ${y})`);
    }
    for (const strip of all("[data-widths]")) {
      const width = Number(strip.dataset.widths.split(" ")[number]);
      Array.from(strip.children).forEach((block, place) => block.classList.toggle("kept", place < width));
    }
  }

  if (slider) {
    slider.addEventListener("input", () => choose(Number(slider.value)));
    for (const point of all("[data-choose]")) {
      point.addEventListener("click", () => choose(Number(point.dataset.choose)));
    }
    choose(data.first);
  }

  for (const button of all("input[name=cost]")) {
    button.addEventListener("change", () => {
      for (const row of all("[data-cost]")) row.hidden = row.dataset.cost !== button.value;
    });
  }

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const own of closed) own.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const own of closed) own.open = false;
  });
})();
