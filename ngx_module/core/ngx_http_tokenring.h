/*
 * The Tokenring module: LLM requests from an NGINX location to an engine.
 *
 * Three objects carry everything.  An engine connection (conn) is one engine
 * socket as this worker sees it: the socket, the channel in shared memory, the
 * slots of the requests in flight.  An engine is what the configuration names:
 * one or more connections.  A ctx is one API request on its way; it lives in
 * r->pool, while its slot lives in the connection, since the engine may speak
 * of a request for longer than the client stays.
 *
 * core/ has the way of a request, to an engine and back.  In brackets: the
 * header, where it is not of the same name.
 *
 *     _module.c     directives and configuration [_conf.h]
 *     _process.c    the life of a worker [_conf.h]
 *     _engine_conf.c  tokenring_engine: names and sockets [_engine.h]
 *     _conn.c       connecting, handshake, loss, reconnecting [_engine.h]
 *     _pulse.c      pings, health, engines that hang [_engine.h]
 *     _channel.c    doorbells, draining what the engine says
 *     _slot.c       the places of requests at an engine
 *     _route.c      which endpoint a path asks for
 *     _handler.c    the content handler [_request.h]
 *     _body.c       the request body, from the client
 *     _submit.c     the request body, into the request ring [_body.h]
 *     _upload.c     bodies that come slowly [_body.h]
 *     _record.c     what the engine's records do to a request [_request.h]
 *     _accepted.c   of these, the first one [_request.h]
 *     _request.c    what else ends it: hang-ups, timers
 *     _send.c       from pending text to the client, never more than it takes
 *     _socket.c     small events into a socket, in one write [_send.h]
 *     _stream.c     what all event streams have in common
 *     _status.c     /health, from the status page
 *     _metrics.c    /metrics
 *     _metrics_engine.c  the part of it that engines say
 *     _counters.c   the gateway's own counters [_metrics.h]
 *     _variables.c  $tokenring_* [_conf.h]
 *
 * routing/ has who may ask for what, and which engine gets it:
 *
 *     _models.c     models by name: which one a request is for
 *     _models_conf.c  tokenring_models [_models.h]
 *     _scan.c       the model in a body
 *     _tenants.c    whose a request is, and what it may use
 *     _accounts.c   what each tenant has used, in shared memory [_accounts.h]
 *     _account_budgets.c  its budgets, where plans change [_accounts.h]
 *     _alone.c      those whose client has left, and that go on [_alone.h]
 *     _limits.c     what a client is told of its plan [_tenants.h]
 *     _tenants_conf.c  tokenring_plan, _tenants and _limits [_tenants.h]
 *     _tally.c      what tenants have used, by name [_tenants.h]
 *     _budget.c     so many units in a time
 *     _quota.c      budgets that hosts share, in Redis [_quota.h]
 *     _quota_wait.c  who waits for its replies [_quota.h]
 *     _seats.c      requests that wait until their tenant may have more
 *     _affinity.c   the engine at which a value's requests stay
 *     _cache_key.c  whose cached prefixes a request shares [_resumable.h]
 *     _prefix.c     which engines had a body's beginning [_prefix.h]
 *     _choose.c     which engine gets a request [_engine.h]
 *     _admit.c      an engine for a request, or a wait [_request.h]
 *     _retry.c      another engine for a request that lost its own [_body.h]
 *     _migrate.c    another engine for one that has begun [_body.h]
 *     _migrate_refused.c  engines that do not go on with it [_body.h]
 *     _suspects.c   requests that are why engines crash [_request.h]
 *
 * api/ has how answers are written:
 *
 *     _endpoint.c   what differs between endpoints: a table
 *     _openai.c     OpenAI's chat and completions [_render.h]
 *     _responses.c  OpenAI's Responses API [_render.h]
 *     _messages.c   Anthropic's Messages API [_render.h]
 *     _result.c     endpoints that generate nothing [_render.h]
 *     _items.c      tool calls and reasoning [_render.h]
 *     _logprobs.c   log probabilities [_render.h]
 *     _resumable.c  streams that a client can resume; requests that go on
 *                   without their client
 *     _error.c      error bodies; tokenring_error
 *     _list.c       /v1/models, from the status page [_status.h]
 *     _text.c       growing buffers, JSON strings
 *     _json.c       whether a text is JSON [_text.h]
 *     _number.c     a float32 as JSON, fast
 *
 * redis/ has what outlives a connection to a client (docs/redis.md):
 *
 *     _redis*.c     connections to Redis, on NGINX's event loop; see redis.h
 *     _state.c      the state of a request, from Redis to JSON
 *     _find.c       looking one up for a client, who may be early
 *     _requests.c   /v1/requests/ID: state and cancelling
 *     _input_items.c  what a response that is kept was asked
 *     _follow.c     /v1/requests/ID/stream: a stream repeated and continued
 *     _stream_sub.c what the clients that follow one request share
 *
 * dashboard/ has the page that shows the fleet; dashboard.h lists its files.
 *
 * This header has the names of the module's types, and nothing else: each part
 * declares what is its own.
 */

#ifndef _NGX_HTTP_TOKENRING_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


typedef struct ngx_http_tokenring_loc_conf_s  ngx_http_tokenring_loc_conf_t;
typedef struct ngx_http_tokenring_engine_s    ngx_http_tokenring_engine_t;
typedef struct ngx_http_tokenring_group_s     ngx_http_tokenring_group_t;
typedef struct ngx_http_tokenring_models_s    ngx_http_tokenring_models_t;
typedef struct ngx_http_tokenring_conn_s      ngx_http_tokenring_conn_t;
typedef struct ngx_http_tokenring_slot_s      ngx_http_tokenring_slot_t;
typedef struct ngx_http_tokenring_ctx_s       ngx_http_tokenring_ctx_t;
typedef struct ngx_http_tokenring_prefix_s    ngx_http_tokenring_prefix_t;
typedef struct ngx_http_tokenring_shared_s    ngx_http_tokenring_shared_t;
typedef struct ngx_http_tokenring_redis_s     ngx_http_tokenring_redis_t;
typedef struct ngx_http_tokenring_follow_s    ngx_http_tokenring_follow_t;
typedef struct ngx_http_tokenring_cache_s     ngx_http_tokenring_cache_t;


extern ngx_module_t  ngx_http_tokenring_module;


#endif /* _NGX_HTTP_TOKENRING_H_INCLUDED_ */
