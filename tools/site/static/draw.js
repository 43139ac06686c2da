// Draws the page's diagrams in their own size: draw.css lets a wide one scroll.
mermaid.initialize({
  startOnLoad: true,
  securityLevel: "strict",
  theme: "neutral",
  flowchart: { useMaxWidth: false },
});
