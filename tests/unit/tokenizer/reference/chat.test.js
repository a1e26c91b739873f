'use strict';
//
// Chat prompts equal what the models' Jinja templates render, as ids, over
// random conversations.  Four models bring their template along; the layouts of
// families whose packages have none are written out below.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { MODELS, ask, random, readJson, reference } = require('./lib');
const { strings } = require('./strings');

const CONVERSATIONS = 150;

const ALTERNATE =
  "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}" +
  "{{ raise_exception('roles must alternate') }}{% endif %}";
const SPLIT_SYSTEM =
  "{%- if messages[0]['role'] == 'system' %}" +
  "{%- set system_message = messages[0]['content'] %}" +
  "{%- set loop_messages = messages[1:] %}{%- else %}" +
  "{%- set loop_messages = messages %}{%- endif %}";

function mistral(user, answer, place) {
  const content = 'message["content"]';
  const plain = `{{- "${user[0]}" + ${content} + "${user[1]}" }}`;
  const withSystem = `{%- if loop.${place} and system_message is defined %}` +
    `{{- "${user[0]}" + system_message + "\\n\\n" + ${content} + "${user[1]}" }}` +
    `{%- else %}${plain}{%- endif %}`;

  return (place ? SPLIT_SYSTEM : '{%- set loop_messages = messages %}') +
    '{{- bos_token }}{%- for message in loop_messages %}' + ALTERNATE +
    `{%- if message["role"] == "user" %}${place ? withSystem : plain}` +
    `{%- elif message["role"] == "assistant" %}{{- ${answer} }}` +
    "{%- else %}{{- raise_exception('no such role') }}{%- endif %}{%- endfor %}";
}

const TEMPLATES = {
  llama2:
    "{% if messages[0]['role'] == 'system' %}" +
    "{% set loop_messages = messages[1:] %}" +
    "{% set system_message = messages[0]['content'] %}{% else %}" +
    "{% set loop_messages = messages %}{% set system_message = false %}" +
    "{% endif %}{% for message in loop_messages %}" + ALTERNATE +
    "{% if loop.index0 == 0 and system_message != false %}" +
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' " +
    "+ message['content'] %}{% else %}{% set content = message['content'] %}" +
    "{% endif %}{% if message['role'] == 'user' %}" +
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}" +
    "{% elif message['role'] == 'assistant' %}" +
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
  mistral_v1: mistral(['[INST] ', ' [/INST]'],
                      'message["content"] + eos_token + " "', null),
  mistral_v2: mistral([' [INST] ', ' [/INST]'],
                      '" " + message["content"] + eos_token', 'first'),
  mistral_v3: mistral(['[INST] ', '[/INST]'],
                      '" " + message["content"]|trim + eos_token', 'last'),
  llama3_1:
    '{{- bos_token }}{%- if not date_string is defined %}' +
    '{%- set date_string = "26 Jul 2024" %}{%- endif %}' +
    "{%- if messages[0]['role'] == 'system' %}" +
    "{%- set system_message = messages[0]['content']|trim %}" +
    '{%- set messages = messages[1:] %}{%- else %}' +
    '{%- set system_message = "" %}{%- endif %}' +
    '{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}' +
    '{{- "Cutting Knowledge Date: December 2023\\n" }}' +
    '{{- "Today Date: " + date_string + "\\n\\n" }}{{- system_message }}' +
    '{{- "<|eot_id|>" }}{%- for message in messages %}' +
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'" +
    "+ message['content'] | trim + '<|eot_id|>' }}{%- endfor %}" +
    '{%- if add_generation_prompt %}' +
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}",
  chatml:
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + " +
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}" +
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
  qwq:
    "{%- if messages[0]['role'] != 'system' %}{{- '' }}{%- endif %}" +
    '{%- for message in messages %}{%- set content = message.content %}' +
    '{%- if message.role == "assistant" %}{%- if not loop.last %}' +
    "{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}" +
    "{%- endif %}{%- endif %}{{- '<|im_start|>' + message.role + '\\n' + content + " +
    "'<|im_end|>' + '\\n' }}{%- endfor %}{%- if add_generation_prompt %}" +
    "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}",
};

// name, tokenizer, template of the package (null) or of the list, and whether
// roles alternate, the system message is taken, "at start" or anywhere.
const CASES = [
  ['pocket', 'pocket', null, { system: 'anywhere' }],
  ['llama3', 'llama3_1', null, { system: 'anywhere' }],
  ['llama3.1', 'llama3_1', 'llama3_1', { system: 'anywhere' }],
  ['qwen2.5', 'qwen2_5', null, { system: 'anywhere' }],
  ['qwen3', 'qwen3', null, { system: 'anywhere', thinks: true }],
  ['qwq', 'qwen2_5', 'qwq', { system: 'anywhere', thinks: true }],
  ['chatml', 'qwen2_5', 'chatml', { system: 'anywhere' }],
  ['llama2', 'llama2', 'llama2', { alternate: true, system: 'start' }],
  ['mistral v0.1', 'llama2', 'mistral_v1', { alternate: true }],
  ['mistral v0.2', 'llama2', 'mistral_v2',
   { alternate: true, system: 'start' }],
  ['mistral v0.3', 'mistral_nemo', 'mistral_v3',
   { alternate: true, system: 'start' }],
  ['mistral nemo', 'mistral_nemo', null, { alternate: true, system: 'start' }],
];

let directory;

before(() => {
  directory = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-chat-'));
});
after(() => fs.rmSync(directory, { recursive: true }));

// A model directory with another template.
function withTemplate(model, name) {
  const to = path.join(directory, `${model}-${name}`);
  const config = readJson(model, 'tokenizer_config.json');

  config.chat_template = TEMPLATES[name];
  fs.mkdirSync(to);
  fs.symlinkSync(path.join(MODELS[model], 'tokenizer.json'),
                 path.join(to, 'tokenizer.json'));
  fs.writeFileSync(path.join(to, 'tokenizer_config.json'),
                   JSON.stringify(config));
  return { to, config };
}

// JavaScript and Python do not trim the same characters at the ends.
const DISPUTED = /^[\s\x1c-\x1f\x85\ufeff]+|[\s\x1c-\x1f\x85\ufeff]+$/g;

function makeContents(r) {
  const list = [];

  for (const text of strings(r, ['none'], 40)) {
    if (text.length < 2000) {
      list.push(text.replace(DISPUTED, ''));
    }
  }
  return list;
}

function conversation(r, contents, rules) {
  const messages = [];
  const content = () => r.pick(['', ' ', '\n\n', '  ']) + r.pick(contents) +
                        r.pick(['', ' ', '\n']);
  // The JavaScript Jinja strips every white space for lstrip('\\n'), and takes
  // an empty string for equal to false: both are kept out.
  const answer = () => !rules.thinks ? content()
    : r.pick(['', '<think>\n', '<think>']) + r.pick(['', '\n', 'hm\n\nso']) +
      r.pick(['', '</think>', '\n</think>\n\n', '</think></think>\n']) +
      (r.pick(contents) || 'so') + r.pick(['', ' ', '\n']);
  const turns = 1 + r.below(6);

  if (rules.system && r.below(2)) {
    messages.push({ role: 'system', content: `.${content()}` });
  }
  for (let i = 0; i < turns; i++) {
    const role = rules.alternate ? (i % 2 ? 'assistant' : 'user')
      : r.pick(rules.system === 'anywhere' && i > 0
        ? ['user', 'assistant', 'system'] : ['user', 'assistant']);
    messages.push({ role,
                    content: role === 'assistant' ? answer() : content() });
  }
  return messages;
}

for (const [name, model, template, rules] of CASES) {
  test(`${name}: prompts as by its Jinja template`, async t => {
    const { Template } = await import('@huggingface/jinja');
    const tokenizer = await reference(model);
    const { to, config } = template ? withTemplate(model, template)
      : { to: MODELS[model], config: readJson(model, 'tokenizer_config.json') };
    const jinja = new Template(config.chat_template);
    const r = random(1989);
    const contents = makeContents(r);
    const questions = [], expected = [];

    for (let i = 0; i < CONVERSATIONS; i++) {
      const messages = conversation(r, contents, rules);
      // left out, or a switch that some templates have and others pass over
      const asked = [{}, { enable_thinking: false },
                     { enable_thinking: true }][i % 3];
      const text = jinja.render({
        messages, add_generation_prompt: true, bos_token: config.bos_token,
        eos_token: config.eos_token, ...asked,
      });

      questions.push({ messages, ...asked });
      expected.push({ text, ids: tokenizer.encode(text, {
        add_special_tokens: false }).ids });
    }
    const answers = ask(to, questions, 'auto');
    for (let i = 0; i < questions.length; i++) {
      assert.deepEqual(answers[i].ids, expected[i].ids,
                       JSON.stringify([questions[i], expected[i].text,
                                       answers[i].error]));
    }
    t.diagnostic(`${questions.length} conversations`);
  });
}
