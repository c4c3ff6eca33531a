// Equations of the pages, rendered by KaTeX 0.16.47 (docs/assets/katex, MIT), so that they read without a network.
for (const place of document.querySelectorAll(".arithmatex")) {
  const text = place.textContent.trim().replace(/^\\[(\[]/, "").replace(/\\[)\]]$/, "");
  katex.render(text, place, { displayMode: place.tagName === "DIV", throwOnError: false });
}
