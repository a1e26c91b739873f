// The OpenAI API of the server that this page comes from: its models, and one
// chat request as a stream of events.

const BASE = new URL('v1/', document.baseURI);

export class ApiError extends Error {
  // status: of HTTP, 0 when there was no answer
  constructor(message, status = 0, param = '') {
    super(message);
    this.status = status;
    this.param = param;
  }
}

async function failure(res) {
  let body = null;
  try {
    body = await res.json();
  } catch {
    // Not from the API: the status says what there is to say.
  }
  const error = body && body.error;
  return new ApiError(error && error.message ? String(error.message)
    : `The server answered ${res.status}.`, res.status,
  (error && error.param && String(error.param)) || '');
}

function headers(key) {
  return { 'Content-Type': 'application/json',
    ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, options) {
  let res;
  try {
    res = await fetch(new URL(path, BASE), { cache: 'no-store', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('There is no connection to the server.');
  }
  if (!res.ok) throw await failure(res);
  return res;
}

// [{id, length, policies}]; policies: what a request may name, the default first
export async function models(key) {
  const body = await (await ask('models', { headers: headers(key) })).json();
  return (body.data || []).map((m) => ({
    id: String(m.id),
    length: Number(m.max_model_len) || 0,
    policies: Array.isArray(m.kv_policies) ? m.kv_policies.map(String) : [],
  }));
}

// What is asked of a stream besides its text.  A server that refuses a field by
// its name is asked for less, from then on.
const EXTRAS = [
  { include_usage: true, continuous_usage_stats: true, include_kv: true },
  { include_usage: true, continuous_usage_stats: true },
  { include_usage: true },
  null,
];
let extras = 0;

function refused(error) {
  return error instanceof ApiError && (error.status === 400 || error.status === 422)
    && /stream_options|include_usage|continuous_usage|include_kv/
      .test(`${error.param} ${error.message}`);
}

// The data of server-sent events, as they arrive.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    left += value;
    const lines = left.split(/\r?\n/);
    left = lines.pop();
    for (const line of lines) {
      if (line.startsWith('data:')) yield line.slice(5).trim();
    }
  }
}

// Calls on.reasoning(more), on.text(more), on.usage(usage), on.finish(reason) as
// the answer comes.
// Throws ApiError, or AbortError when `signal` ended it.
export async function chat(request, { key, signal, on }) {
  let res;
  for (;;) {
    const options = EXTRAS[extras];
    try {
      res = await ask('chat/completions', { method: 'POST', signal,
        headers: headers(key), body: JSON.stringify({ ...request, stream: true,
          ...(options ? { stream_options: options } : {}) }) });
      break;
    } catch (error) {
      if (!options || !refused(error)) throw error;
      extras++;
    }
  }
  let over = false;
  try {
    for await (const data of events(res.body)) {
      if (data === '[DONE]') {
        over = true;
        continue;
      }
      const event = JSON.parse(data);
      if (event.error) {
        throw new ApiError(String(event.error.message || 'The request failed.'),
          500, String(event.error.param || ''));
      }
      if (event.usage) on.usage(event.usage);
      for (const choice of event.choices || []) {
        const { reasoning_content: thought, content: more } = choice.delta || {};
        if (thought) on.reasoning(thought);
        if (more) on.text(more);
        if (choice.finish_reason) on.finish(choice.finish_reason);
      }
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiError) throw error;
    throw new ApiError('The connection was lost in the middle of the answer.');
  }
  if (!over) {
    throw new ApiError('The answer ended before it was complete.');
  }
}
