# The benchmarks.  Included by the Makefile.
#
#   make bench            all of them, one summary (a few minutes)
#   make bench-gateway    NGINX with our module against proxy_pass
#   make bench-engine     matrix products, batching, page management
#   make bench-weights    a step by what weights are kept in: 16 bits, INT8, INT4
#   make bench-manager    what the manager of KV pages takes
#   make bench-attention  compressed caches against 16 bits, cost of scores
#   make bench-kv-store   tokens into pages: append, moves, compression
#   make bench-prefix     users of one system prompt, pages shared against copies
#   make bench-policy     share of policy and pages in a step of the real model
#   make bench-capacity   conversations at once in one KV pool, by policy
#   make bench-reuse      what reuse of prefixes saves, and costs
#   make bench-fair       what others wait beside a flood, what fairness costs
#   make bench-worker     what a worker pays for ids kept, and for tenants
#   make bench-pause      the last stream's pause when an engine is killed
#   make bench-moves      200 streams whose engines are killed again and again
#   make bench-dashboard  what a viewer of the dashboard costs a worker
#   make bench-redis      what the publisher takes, with Redis and without
#   make bench-redis-faults   what clients notice of a Redis in trouble
#   make bench-resume     answers read again from Redis, many followers
#   make bench-grammar    masks and compile times over schemas of jsonschemabench
#                         (BENCH_TOKENIZER=DIR BENCH_SCHEMAS=DIR), and of hostile
#                         ones, not part of `make bench`
#   make bench-template   a prompt of 1,000 messages with tools, also for
#                         BENCH_MODELS=DIR..
#   make bench-hostile    what plain streams notice of 64 hostile schemas
#   make bench-scan       reading the model in a body, ns a byte
#   make bench-footprint  start, memory, idle CPU
#   make bench-first-token    seconds from a clone to the first token, compiled
#                         without ccache; not part of `make bench`
#   make bench-soak       everything for MINUTES=60, not part of `make bench`
#   make eval-formats     right answers of models/pocket in every format of
#                         weights (CASES=8 EVAL_SET="--set backend=cuda"); needs
#                         numpy, hours on two cores; not part of `make bench`
#   make stress           models to try KV policies on, in $B/stress
#   make bench-gpu        compiles bench_gpu; tests/gpu/engine.sh runs it
#
# RESULTS=DIR stores JSON and a table of each there.  docs/benchmarks.md has the
# figures that the project publishes.

RESULTS      ?=
BENCH_PROG   := $B/bench/upstream $B/bench/sse_load
BENCH_ENGINE := $B/bench/bench_engine
BENCH_WEIGHTS := $B/bench/bench_weights
BENCH_MANAGER := $B/bench/bench_manager
BENCH_ATTENTION := $B/bench/bench_attention
BENCH_STORE  := $B/bench/bench_kv_store
BENCH_POLICY := $B/bench/bench_policy
BENCH_PREFIX := $B/bench/bench_prefix
BENCH_GRAMMAR := $B/bench/bench_grammar
BENCH_SCAN   := $B/bench/bench_scan
BENCH_TEMPLATE := $B/bench/bench_template
bench_json    = $(if $(RESULTS),--json $(RESULTS)/$(1).json)

$(BENCH_PROG): $B/bench/%: tests/bench/%.c engine/executor/null_trace.h
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$Q$(CC) $(TR_CFLAGS) $(CFLAGS) -o $@ $<

$(BENCH_ENGINE) $(BENCH_WEIGHTS) $(BENCH_MANAGER) $(BENCH_ATTENTION) $(BENCH_STORE) \
    $(BENCH_POLICY) $(BENCH_PREFIX) $(BENCH_GRAMMAR) $(BENCH_SCAN) $(BENCH_TEMPLATE): \
    $B/bench/%: $B/obj/tests/bench/%.o $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ $(LIBS) $(LDFLAGS)

$(BENCH_SCAN): $B/obj/ngx_module/routing/ngx_http_tokenring_scan.o

# The engine's steps on a GPU: nothing of the CPU backend is linked, so that it
# runs where OpenBLAS is not.  JANSSON=-l:libjansson.a for a machine without.
JANSSON   ?= -ljansson
BENCH_GPU := $B/bench/bench_gpu
$(BENCH_GPU): $(patsubst %.c,$B/obj/%.o,$(wildcard tests/bench/gpu/*.c)) \
    $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ $(JANSSON) -lm $(LDFLAGS)

CASES ?= 8
.PHONY: eval-formats
eval-formats: cli
	@python3 tests/eval/formats.py $B/formats --cases $(CASES) $(EVAL_SET) \
	    --tokenring $B/bin/tokenring

# Those that are exact, and those that are trained, each unless it was.
TRAINED := bursts first biases norms
.PHONY: stress
stress:
	@python3 models/pocket/stress.py --all --out $B/stress
	@for name in $(TRAINED); do \
	    [ -s models/stress/$$name/change.safetensors ] \
	        || python3 models/pocket/stress_train.py $$name --out $B/stress \
	        || exit 1; \
	done
	@python3 models/stress/make.py --out $B/stress

.PHONY: bench-gpu
bench-gpu: $(BENCH_GPU)

.PHONY: bench bench-tools bench-dashboard bench-redis bench-resume \
        bench-redis-faults bench-soak \
        bench-capacity bench-reuse bench-fair bench-worker bench-pause bench-moves bench-grammar bench-scan \
        bench-template bench-hostile \
        bench-gateway bench-engine bench-weights bench-footprint bench-first-token bench-manager \
        bench-attention bench-kv-store bench-policy bench-prefix
bench-tools: $(BENCH_PROG) $(BENCH_ENGINE) $(BENCH_WEIGHTS) $(BENCH_MANAGER) $(BENCH_ATTENTION) \
             $(BENCH_STORE) $(BENCH_POLICY) $(BENCH_PREFIX) $(BENCH_GRAMMAR) \
             $(BENCH_SCAN) $(BENCH_TEMPLATE)

bench-gateway: engine module $(BENCH_PROG)
	@B="$B" node tests/bench/gateway.js $(call bench_json,gateway)

bench-footprint: engine module
	@B="$B" node tests/bench/footprint.js $(call bench_json,footprint)

bench-first-token: deps-build
	@tests/bench/first_token.sh

bench-dashboard: module
	@B="$B" node tests/bench/dashboard.js $(call bench_json,dashboard)

bench-capacity: engine cli module
	@B="$B" node tests/bench/capacity.js $(call bench_json,capacity)

bench-reuse: engine cli module
	@B="$B" node tests/bench/reuse.js $(call bench_json,reuse)

bench-worker: engine module $B/bench/sse_load
	@B="$B" node tests/bench/worker.js $(call bench_json,worker)

bench-pause: engine cli module
	@B="$B" node tests/bench/pause.js $(call bench_json,pause)

bench-moves: engine cli module
	@B="$B" TR_BUILD="$B" node tests/bench/moves.js $(call bench_json,moves)

bench-fair: engine cli module
	@B="$B" node tests/bench/fair.js $(call bench_json,fair)

bench-engine: $(BENCH_ENGINE)
	@B="$B" node tests/bench/engine.js $(call bench_json,engine)

bench-weights: $(BENCH_WEIGHTS)
	@node tests/bench/weights.js $(call bench_json,weights)

bench-manager: $(BENCH_MANAGER)
	@B="$B" node tests/bench/manager.js $(call bench_json,manager)

bench-attention: $(BENCH_ATTENTION)
	@$< $(call bench_json,attention)

bench-kv-store: $(BENCH_STORE)
	@$<

bench-prefix: $(BENCH_PREFIX)
	@$<
	@$< --policy diffkv:alpha_high=8,alpha_low=0

bench-policy: $(BENCH_POLICY)
	@B="$B" node tests/bench/policy.js $(call bench_json,policy)

bench-redis: engine module $B/bench/sse_load
	@B="$B" node tests/bench/redis.js $(call bench_json,redis)

bench-redis-faults: engine module
	@B="$B" node tests/bench/redis_faults.js $(call bench_json,redis_faults)

bench-grammar: $(BENCH_GRAMMAR)
	@$< $(BENCH_TOKENIZER) $(BENCH_SCHEMAS)

bench-template: $(BENCH_TEMPLATE)
	@$< 1000 models/pocket $(BENCH_MODELS)

bench-hostile: engine module
	@B="$B" node tests/bench/hostile.js

bench-scan: $(BENCH_SCAN)
	@$< $(call bench_json,scan)

MINUTES ?= 60
HEAP_COUNT := $B/bench/libheap_count.so
$(HEAP_COUNT): tests/bench/heap_count.c
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -fPIC -fno-builtin -shared -pthread -o $@ $<

bench-soak: engine module $(HEAP_COUNT)
	@B="$B" node tests/bench/soak.js --minutes $(MINUTES) \
	    $(call bench_json,soak)

bench-resume: module
	@B="$B" node tests/bench/resume.js $(call bench_json,resume)

bench: deps
	@$(MAKE) -s --no-print-directory -j$(JOBS) engine module bench-tools
	@echo "== gateway"
	@$(MAKE) -s --no-print-directory bench-gateway
	@echo "== engine"
	@$(MAKE) -s --no-print-directory bench-engine
	@echo "== manager"
	@$(MAKE) -s --no-print-directory bench-weights
	@$(MAKE) -s --no-print-directory bench-manager
	@echo "== attention"
	@$(MAKE) -s --no-print-directory bench-attention
	@echo "== kv-store"
	@$(MAKE) -s --no-print-directory bench-kv-store
	@echo "== prefix"
	@$(MAKE) -s --no-print-directory bench-prefix
	@echo "== policy"
	@$(MAKE) -s --no-print-directory bench-policy
	@echo "== fair"
	@$(MAKE) -s --no-print-directory bench-fair
	@echo "== worker"
	@$(MAKE) -s --no-print-directory bench-worker
	@echo "== pause"
	@$(MAKE) -s --no-print-directory bench-pause
	@echo "== moves"
	@$(MAKE) -s --no-print-directory bench-moves
	@echo "== dashboard"
	@$(MAKE) -s --no-print-directory bench-dashboard
	@echo "== scan"
	@$(MAKE) -s --no-print-directory bench-scan
	@echo "== redis"
	@$(MAKE) -s --no-print-directory bench-redis
	@echo "== redis-faults"
	@$(MAKE) -s --no-print-directory bench-redis-faults
	@echo "== resume"
	@$(MAKE) -s --no-print-directory bench-resume
	@echo "== footprint"
	@$(MAKE) -s --no-print-directory bench-footprint
