// A button on each block of code that copies it. Output of programs has none.
const SHOWN_MS = 1500;

function addButton(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
  });
  block.append(button);
}

// Long names in tables may break where their words end. A copy of the text has no sign of it.
function letBreak(name) {
  const words = name.textContent.split(/(?<=[_/:.=,])(?=[a-z])/i);
  name.replaceChildren(...words.flatMap((word) => [word, document.createElement("wbr")]).slice(0, -1));
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("table.docutils span.pre").forEach(letBreak);
  if (navigator.clipboard) {
    const code = "div[class*=highlight-]:not(.highlight-text) div.highlight";
    document.querySelectorAll(code).forEach(addButton);
  }
});
