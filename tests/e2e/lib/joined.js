'use strict';
//
// Answers in one form, whether they came whole or streamed.

// Without ids, times and the cache's figures.
function said(value) {
  if (Array.isArray(value)) return value.map(said);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value)
    .filter(([k]) => !['id', 'call_id', 'item_id', 'created', 'created_at',
      'completed_at', 'kv_cache', 'usage', 'prompt_cache_key'].includes(k))
    .map(([k, v]) => [k, said(v)]));
}

const of = (choices, index) => {
  choices[index] = choices[index] || { content: '', thought: '', calls: [],
    logprobs: [] };
  return choices[index];
};

// Chats and completions: choices of the events, or of the whole answer.
function joinedChoices(events) {
  const choices = [];
  for (const c of events.flatMap((e) => e.choices || [])) {
    const at = of(choices, c.index), delta = c.delta || { content: c.text };
    at.content += delta.content || '';
    at.thought += delta.reasoning_content || '';
    for (const call of delta.tool_calls || []) {
      at.calls[call.index] = at.calls[call.index] || { name: '', args: '' };
      at.calls[call.index].name += call.function.name || '';
      at.calls[call.index].args += call.function.arguments || '';
    }
    at.logprobs.push(...tokensOf(c.logprobs));
    if (c.finish_reason) at.reason = c.finish_reason;
  }
  return choices;
}

function tokensOf(logprobs) {
  if (!logprobs) return [];
  return logprobs.content || logprobs.tokens.map((token, k) => ({ token,
    logprob: logprobs.token_logprobs[k], at: logprobs.text_offset[k] }));
}

function wholeChoices(answer) {
  const choices = [];
  for (const c of answer.choices) {
    const at = of(choices, c.index), m = c.message || { content: c.text };
    at.content = m.content || '';
    at.thought = m.reasoning_content || '';
    at.calls = (m.tool_calls || []).map((call) => ({ name: call.function.name,
      args: call.function.arguments }));
    at.logprobs = tokensOf(c.logprobs);
    at.reason = c.finish_reason;
  }
  return choices;
}

// What a call's input is that was cut, as a whole message has it.
function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return { INVALID_JSON: json };
  }
}

// Events of /v1/messages.
function joinedMessage(events) {
  const out = [];
  let end = {};
  for (const e of events) {
    if (e.type === 'content_block_start') out[e.index] = { ...e.content_block };
    if (e.type === 'content_block_delta') {
      for (const [k, v] of Object.entries(e.delta)) {
        if (k !== 'type') out[e.index][k] = (out[e.index][k] || '') + v;
      }
    }
    if (e.type === 'message_delta') end = e.delta;
  }
  return { stop: end.stop_reason, text: end.stop_sequence,
    content: out.map(({ partial_json: json, ...b }) => said(
      b.type === 'tool_use' ? { ...b, input: parsed(json || '{}') } : b)) };
}

const wholeMessage = (answer) => ({ stop: answer.stop_reason,
  text: answer.stop_sequence, content: said(answer.content) });

// Events of /v1/responses: the last one's response, once its texts are those of
// the events before.
function joinedResponse(events) {
  const { response } = events.at(-1), texts = [];
  events.forEach((e, k) => {
    if (e.sequence_number !== k) throw new Error(`event ${k} is ${
      JSON.stringify(e)}`);
    if (e.type.endsWith('.delta')) {
      texts[e.output_index] = (texts[e.output_index] || '') + e.delta;
    }
  });
  response.output.forEach((item, i) => {
    const text = item.type === 'function_call' ? item.arguments
      : (item.content || []).map((part) => part.text).join('');
    if (text !== (texts[i] || '')) {
      throw new Error(`${texts[i]} is told as ${text}`);
    }
  });
  return wholeResponse(response);
}

const wholeResponse = (answer) => ({ status: answer.status,
  why: answer.incomplete_details, output: said(answer.output) });

module.exports = { said, joinedChoices, wholeChoices, joinedMessage,
  wholeMessage, joinedResponse, wholeResponse };
