'use strict';
//
// An engine whose answers a test writes: backend null with null_script, the
// tokenizer of models/pocket, and a chat template that knows tools.

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { Stack, POCKET, BUILD } = require('./stack');

// Hermes in the layout of Llama 3.
const TEMPLATE = `{{ bos_token }}
{%- macro turn(role, text) %}<|start_header_id|>{{ role }}<|end_header_id|>

{{ text }}<|eot_id|>{% endmacro %}
{%- if tools %}{{ turn('system', 'Tools: ' + (tools | tojson)) }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ turn('user', '<tool_response>' + m.content + '</tool_response>') }}
{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}
{%- for c in m.tool_calls %}{{ '\\n' if m.content or not loop.first else '' }}<tool_call>
{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
</tool_call>{% endfor %}<|eot_id|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% if enable_thinking %}<think>
{% endif %}{% endif %}`;

// A call as that template writes it, and a model with it.
const call = (name, args) => `<tool_call>\n${JSON.stringify({
  name, arguments: args })}\n</tool_call>`;

// A directory like models/pocket: with that template, or with the tokenizer and
// the template of a folder.
function model(dir, template = TEMPLATE, tokenizer = null) {
  fs.mkdirSync(dir, { recursive: true });
  for (const f of ['config.json', 'tokenizer.json', 'tokenizer_config.json']) {
    fs.copyFileSync(path.join(f === 'config.json' || !tokenizer ? POCKET
      : tokenizer, f), path.join(dir, f));
  }
  if (!tokenizer) {
    fs.writeFileSync(path.join(dir, 'chat_template.jinja'), template);
  }
  return dir;
}

// Lines of a script: each text as token ids, with the end of the turn.
function lines(texts, dir, end) {
  const run = spawnSync(path.join(BUILD, 'bin/tokenring'),
    ['tokenize', '-m', dir, '--json', '--parse-special'], {
      encoding: 'utf8', maxBuffer: 1 << 26,
      input: texts.map((t) => `${JSON.stringify(`${t}${end}`)}\n`).join(''),
    });
  if (run.status !== 0) throw new Error(run.stderr);
  return run.stdout.trim().split('\n').map((l) => JSON.parse(l).join(' '));
}

// A stack whose engine says these texts, one after the other.
async function scripted(texts, options = {}) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-script-'));
  const made = model(path.join(dir, 'scripted'), options.template,
    options.tokenizer);
  fs.writeFileSync(path.join(dir, 'script'),
    `${lines(texts, made, options.end || '<|eot_id|>').join('\n')}\n`);
  const stack = await Stack.start({
    ...options,
    engine: {
      model: made,
      backend: 'null', null_rate: 2000, null_script: path.join(dir, 'script'),
      ...options.engine,
    },
  });
  const stop = stack.stop.bind(stack);
  stack.stop = async () => {
    await stop();
    fs.rmSync(dir, { recursive: true, force: true });
  };
  return stack;
}

module.exports = { scripted, call, TEMPLATE };
