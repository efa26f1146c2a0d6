"use strict";
// The page is whole without this: it adds a button that copies a command, and filters of the long lists.
for (const block of document.querySelectorAll("pre.command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    const code = block.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code); // a page from a file may not be given the clipboard
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  block.append(button);
}
for (const filter of document.querySelectorAll(".filter")) {
  const cases = [...filter.closest("section").querySelectorAll("[data-case]")];
  const shown = filter.querySelector("output");
  filter.hidden = false;
  filter.querySelector("input").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const element of cases) {
      const text = element.textContent.toLowerCase();
      element.hidden = !words.every((word) => text.includes(word));
    }
    shown.textContent = `${cases.filter((element) => !element.hidden).length} of ${cases.length} shown`;
  });
}
