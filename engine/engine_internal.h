/*
 * engine_internal.h: what a start (engine.c) and `--check` (engine_check.c) have
 * in common.  Whatever a start refuses, a check must refuse, so that it is code
 * of both where that can be.
 */
#ifndef TR_ENGINE_INTERNAL_H
#define TR_ENGINE_INTERNAL_H

#include "engine.h"

#include "engine/model/model_config.h"
#include "engine/template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"

/* Does this host have the memory and the directories that config asks for? */
tr_status_t tr_engine_check_host(const tr_config_t *config, tr_error_t *err);

/* Tokenizer and template of the model; *tokenizer is the caller's to free, also
 * when the template fails.  Before them its config.json is judged: whoever has a
 * model that we do not run hears that, not what is wrong with its template.
 * *generation: its sampling defaults; may be NULL. */
tr_status_t tr_engine_load_text(const tr_config_t *config,
                                tr_generation_t *generation,
                                tr_tokenizer_t **tokenizer,
                                tr_chat_template_t *chat_template,
                                tr_error_t *err);

#endif
