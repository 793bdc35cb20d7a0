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

if (navigator.clipboard) {
  document.addEventListener("DOMContentLoaded", () => {
    const code = "div[class*=highlight-]:not(.highlight-text) div.highlight";
    document.querySelectorAll(code).forEach(addButton);
  });
}
