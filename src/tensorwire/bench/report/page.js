// SPDX-License-Identifier: Apache-2.0
// Draws the pictures. Their colours of ink and paper are in the page's style, so that they follow
// the reader's choice of light and dark, and print.
"use strict";

const config = {
  displaylogo: false,
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  responsive: true,
};
const figures = JSON.parse(document.getElementById("figures").textContent);
const page = document.documentElement;
page.dataset.drawn = "0";

function draw(id) {
  const figure = figures[id];
  if (figure === undefined) return;
  delete figures[id];
  Plotly.newPlot(id, figure.data, figure.layout, config);
  page.dataset.drawn = String(Number(page.dataset.drawn) + 1);
}

// Each when it comes near; before the page is printed, all of them.
const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        draw(entry.target.id);
      }
    }
  },
  { rootMargin: "1000px" },
);
for (const id of Object.keys(figures)) near.observe(document.getElementById(id));
window.addEventListener("beforeprint", () => Object.keys(figures).forEach(draw));
