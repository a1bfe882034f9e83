// Ask the built site's own search the questions of questions.json. It fails if a page is neither the first nor the second.
// node tests/site/search.js [SITE [QUESTION…]]
const fs = require("fs"), path = require("path"), vm = require("vm");

const [site = path.join(__dirname, "../../site"), ...typed] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(workers).find(name => /^search\..*\.js$/.test(name));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
const asked = typed.length ? typed.map(question => ({ question }))
  : JSON.parse(fs.readFileSync(path.join(__dirname, "questions.json"), "utf8"));

// The worker runs here as in a browser: it listens for messages and posts answers.
let listener, answer;
const page = { console, addEventListener: (_, handler) => { listener = handler; }, postMessage: data => answer(data) };
page.self = page;
vm.runInNewContext(fs.readFileSync(path.join(workers, worker), "utf8"), page);
const ask = (type, data) => new Promise(resolve => { answer = resolve; listener({ data: { type, data } }); });

(async () => {
  await ask(0, { ...index, options: { suggest: false } });
  let first = 0, late = 0;
  for (const { question, page } of asked) {
    const { data } = await ask(2, question);
    const hits = data.items.map(sections => sections[0].location);
    const wanted = page && page.replace(/\.md$/, ".html").replace(/(^|\/)README\.html$/, "$1index.html");
    const place = hits.findIndex(hit => wanted && hit.split("#")[0] === wanted.split("#")[0]) + 1;
    first += place === 1;
    late += place < 1 || place > 2;
    if (place !== 1) console.log(`${question}: ${wanted ? `${wanted} is ${place ? `number ${place}` : "absent"}; ` : ""}${hits.slice(0, 4).join(", ")}`);
  }
  if (!typed.length) {
    console.log(`${first} of ${asked.length} questions find their page first, ${asked.length - first - late} second, ${late} later`);
    process.exitCode = late ? 1 : 0;
  }
})();
