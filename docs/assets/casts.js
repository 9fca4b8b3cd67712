// A link to a recording (*.cast) becomes a player; its text or its picture stays if the recording does not load.
(function () {
  const here = document.currentScript.src;
  const links = () => document.querySelectorAll('article a[href$=".cast"]');

  function loaded(tag, attributes) {
    return new Promise((resolve, reject) => {
      const element = Object.assign(document.createElement(tag), attributes, { onload: resolve, onerror: reject });
      document.head.append(element);
    });
  }

  async function play(link) {
    const answer = await fetch(link.href);
    if (!answer.ok) return;
    const data = await answer.text();
    const moves = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const home = link.querySelector("img") !== null && moves;
    const place = document.createElement("div");
    place.className = "recording";
    link.replaceWith(place);
    AsciinemaPlayer.create({ data }, place, {
      fit: "width", idleTimeLimit: 2, poster: "npt:1.5", autoPlay: home, loop: home, controls: true, theme: "dracula",
    });
  }

  document.addEventListener("DOMContentLoaded", async () => {
    if (links().length === 0) return;
    await loaded("link", { rel: "stylesheet", href: new URL("asciinema-player.css", here) });
    await loaded("script", { src: new URL("asciinema-player.min.js", here) });
    for (const link of links()) play(link).catch(console.error);
  });
})();
