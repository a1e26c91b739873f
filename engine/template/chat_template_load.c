/*
 * Which layout is a Jinja template?
 *
 * The template is squeezed first: white space outside of string literals goes,
 * quotes become ', message.content becomes message['content'].  What decides
 * then is whole expressions, such as
 *
 *     '[INST] '+message['content']+' [/INST]'
 *
 * Known marks in an unknown arrangement are an error, so that a template that
 * is only similar is not rendered wrongly without anybody noticing.
 */
#include "chat_template.h"
#include "engine/tokenizer/tokenizer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TEMPLATE_MAX_BYTES (1u << 20)

static const char *const names[] = {
    [TR_TEMPLATE_NONE] = "none",       [TR_TEMPLATE_LLAMA3] = "llama3",
    [TR_TEMPLATE_CHATML] = "chatml",   [TR_TEMPLATE_LLAMA2] = "llama2",
    [TR_TEMPLATE_MISTRAL] = "mistral",
};

const char *
tr_chat_template_name(tr_template_kind_t kind)
{
    return names[kind];
}

static bool
put(tr_bytes_t *b, const char *text)
{
    return tr_bytes_append(b, text, strlen(text));
}

/* One string literal, from its opening quote on; returns what follows it. */
static const char *
squeeze_literal(const char *p, tr_bytes_t *out, bool *ok)
{
    char quote = *p++;

    *ok &= put(out, "'");
    while (*p != '\0' && *p != quote) {
        if (*p == '\\' && p[1] != '\0') {
            *ok &= tr_bytes_append(out, p, 2);
            p += 2;
        } else if (*p == '\n') { /* a real line end means the same */
            *ok &= put(out, "\\n");
            p++;
        } else {
            *ok &= tr_bytes_append(out, p++, 1);
        }
    }
    *ok &= put(out, "'");
    return *p == '\0' ? p : p + 1;
}

/* p stands at '{' of a block or at text between blocks. */
static bool
squeeze(const char *p, tr_bytes_t *out)
{
    bool ok = true, in_block = false;

    while (*p != '\0' && ok) {
        if (strncmp(p, "{#", 2) == 0 && !in_block) {
            const char *end = strstr(p, "#}");

            p = end ? end + 2 : p + strlen(p);
        } else if ((strncmp(p, "{{", 2) == 0 || strncmp(p, "{%", 2) == 0)
                   && !in_block) {
            in_block = true;
            ok = tr_bytes_append(out, p, 2);
            p += p[2] == '-' ? 3 : 2;
        } else if (in_block
                   && (strncmp(p, "}}", 2) == 0 || strncmp(p, "%}", 2) == 0)) {
            in_block = false;
            ok = tr_bytes_append(out, p, 2);
            p += 2;
        } else if (in_block && (*p == '\'' || *p == '"')) {
            p = squeeze_literal(p, out, &ok);
        } else if (in_block
                   && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'
                       || (*p == '-' && (p[1] == '}' || p[1] == '%')))) {
            p++;
        } else if (in_block && strncmp(p, "message.content", 15) == 0) {
            ok = put(out, "message['content']");
            p += 15;
        } else if (in_block && strncmp(p, "message.role", 12) == 0) {
            ok = put(out, "message['role']");
            p += 12;
        } else {
            ok = tr_bytes_append(out, p++, 1);
        }
    }
    return ok && tr_bytes_append(out, "", 1);
}

static tr_status_t
out_of_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "chat_template", "out of memory");
}

static tr_status_t
unknown(tr_error_t *err, const char *what)
{
    return tr_error_set(err, TR_ERR_UNSUPPORTED, "chat_template",
                        "the model's chat template is not known: %s; set "
                        "chat_template to llama3, chatml, llama2, mistral or "
                        "none",
                        what);
}

/* The text of a literal up to `end`, escapes undone, into a fixed field. */
static bool
copy_literal(const char *p, const char *end, char *out, size_t cap)
{
    size_t n = 0;

    while (p < end) {
        char c = *p++;

        if (c == '\\' && p < end) {
            c = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
            p++;
        }
        if (n + 1 >= cap) {
            return false;
        }
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

static tr_status_t
recognise_llama3(tr_chat_template_t *c, const char *q, tr_error_t *err)
{
    static const char date_mark[] = "date_string='";
    const char *at;

    if (strstr(q, "'<|start_header_id|>'+message['role']+'<|end_header_id|>"
                  "\\n\\n'+message['content']|trim+'<|eot_id|>'")) {
        c->trim = true;
    } else if (!strstr(q, "'<|start_header_id|>'+message['role']+'<|end_header_"
                          "id|>\\n\\n'+message['content']+'<|eot_id|>'")) {
        return unknown(err, "it has Llama 3's marks in another arrangement");
    }
    if (strstr(q, "Cutting Knowledge Date") == NULL) {
        return TR_OK;
    }
    if (!strstr(q, "'Cutting Knowledge Date: December 2023\\n'")
        || !strstr(q, "'Today Date: '+date_string+'\\n\\n'")) {
        return unknown(err, "it has another system header than Llama 3.1");
    }
    c->date_header = true;
    at = strstr(q, date_mark);
    if (at != NULL && strstr(q, "strftime_now('%d %b %Y')") == NULL) {
        at += sizeof(date_mark) - 1;
        if (!copy_literal(at, strchr(at, '\''), c->date, sizeof(c->date))) {
            return unknown(err, "its date is too long");
        }
    }
    return TR_OK;
}

/* The message that a ChatML template puts when there is no system message. */
static tr_status_t
find_default_system(tr_chat_template_t *c, const char *q, tr_error_t *err)
{
    static const char mark[] = "'<|im_start|>system\\n";
    const char *at = q;

    while ((at = strstr(at, mark)) != NULL) {
        const char *end, *quote;

        at += sizeof(mark) - 1;
        end = strstr(at, "<|im_end|>");
        quote = strchr(at, '\'');
        while (quote != NULL && quote[-1] == '\\') {
            quote = strchr(quote + 1, '\'');
        }
        if (end != NULL && end > at && quote != NULL && end < quote
            && !copy_literal(at, end, c->default_system,
                             sizeof(c->default_system))) {
            return unknown(err, "its default system message is too long");
        }
    }
    return TR_OK;
}

/* What a ChatML template does with enable_thinking: Qwen3's puts thoughts that
 * are empty, whatever it puts otherwise. */
static void
find_switch(tr_chat_template_t *c, const char *q)
{
    static const char mark[] = "ifenable_thinkingisdefinedandenable_"
                               "thinkingisfalse%}";
    const char *at = strstr(q, mark), *end;

    if (at == NULL || strstr(q, "enable_thinking") < at) {
        return;
    }
    at += sizeof(mark) - 1;
    at += strspn(at, " \t\r\n");
    if (strncmp(at, "{{'", 3) != 0 || strstr(at, "enable_thinking") != NULL) {
        return;
    }
    at += 3;
    end = strchr(at, '\'');
    if (end != NULL && strncmp(end, "'}}", 3) == 0
        && copy_literal(at, end, c->no_thinking, sizeof(c->no_thinking))) {
        c->thinking = TR_SWITCH_OFF;
    }
}

static tr_status_t
recognise_chatml(tr_chat_template_t *c, const char *q, tr_error_t *err)
{
    if (strstr(q, "<|im_sep|>") != NULL) {
        return unknown(err, "it has ChatML's marks and <|im_sep|>");
    }
    if (strstr(q, "+'\\n'+message['content']|trim+'<|im_end|>")) {
        c->trim = true;
    } else if (!strstr(q, "'<|im_start|>'+message['role']+'\\n'+message['"
                          "content']+'<|im_end|>")
               && !strstr(q, "'<|im_start|>'+message['role']+'\\n'+content+'<|"
                             "im_end|>")) {
        return unknown(err, "it has ChatML's marks in another arrangement");
    }
    if (strstr(q, "last_query_index") && strstr(q, "'</think>'")) {
        c->think = TR_THINK_DROP_BEFORE_QUERY;
    } else if (strstr(q, "split('</think>')")) {
        c->think = strstr(q, "notloop.last") ? TR_THINK_DROP_BUT_LAST
                                             : TR_THINK_DROP;
    }
    if (strstr(q, "'<|im_start|>assistant\\n<think>\\n'")) {
        strcpy(c->generation, "<think>\n");
    }
    find_switch(c, q);
    return find_default_system(c, q, err);
}

static tr_status_t
recognise_llama2(const char *q, tr_error_t *err)
{
    if (!strstr(q, "bos_token+'[INST] '+content.strip()+' [/INST]'")
        || !strstr(q, "' '+content.strip()+' '+eos_token")
        || !strstr(q, "'<<SYS>>\\n'+system_message+'\\n<</"
                      "SYS>>\\n\\n'+message['content']")) {
        return unknown(err, "it has Llama 2's marks in another arrangement");
    }
    return TR_OK;
}

static tr_status_t
recognise_mistral(tr_chat_template_t *c, const char *q, tr_error_t *err)
{
    static const struct {
        const char *expression, *before, *after, *last;
    } users[] = {
        { "' [INST] '+message['content']+' [/INST]'", " ", " ", " " },
        { "'[INST] '+message['content']+' [/INST]'", "", " ", " " },
        { "'[INST] '+message['content']+'[/INST]'", "", " ", "" },
        { "'[INST]'+message['content']+'[/INST]'", "", "", "" },
    };
    static const struct {
        const char *expression, *before, *after;
        bool trim;
    } answers[] = {
        { "' '+message['content']|trim+eos_token", " ", "", true },
        { "' '+message['content']+eos_token", " ", "", false },
        { "message['content']+eos_token+' '", "", " ", false },
        { "message['content']+eos_token", "", "", false },
    };
    size_t i, k;

    for (i = 0; i < 4 && !strstr(q, users[i].expression); i++) {
    }
    for (k = 0; k < 4 && !strstr(q, answers[k].expression); k++) {
    }
    if (i == 4 || k == 4 || strstr(q, "[SYSTEM_PROMPT]")) {
        return unknown(err, "it has Mistral's marks in another arrangement");
    }
    strcpy(c->user_before, users[i].before);
    strcpy(c->user_after, users[i].after);
    strcpy(c->user_last, users[i].last);
    strcpy(c->answer_before, answers[k].before);
    strcpy(c->answer_after, answers[k].after);
    c->trim = answers[k].trim;
    if (strstr(q, "system_message") == NULL) {
        c->system_place = TR_SYSTEM_REFUSED;
    } else if (!strstr(q, "system_message+'\\n\\n'+message['content']")) {
        return unknown(err, "it places Mistral's system message otherwise");
    } else if (strstr(q, "ifloop.lastandsystem_messageisdefined")) {
        c->system_place = TR_SYSTEM_LAST_USER;
    } else if (strstr(q, "ifloop.firstandsystem_messageisdefined")) {
        c->system_place = TR_SYSTEM_FIRST_USER;
    } else {
        return unknown(err, "it places Mistral's system message otherwise");
    }
    return TR_OK;
}

static tr_status_t
recognise(tr_chat_template_t *c, const char *q, tr_error_t *err)
{
    if (strstr(q, "bos_token") == NULL) {
        c->bos[0] = '\0';
    }
    if (strstr(q, "enable_thinking") != NULL) {
        c->thinking = TR_SWITCH_UNKNOWN;
    }
    if (strstr(q, "<|start_header_id|>")) {
        c->kind = TR_TEMPLATE_LLAMA3;
        return recognise_llama3(c, q, err);
    }
    if (strstr(q, "<|im_start|>")) {
        c->kind = TR_TEMPLATE_CHATML;
        return recognise_chatml(c, q, err);
    }
    if (strstr(q, "[INST]") && strstr(q, "<<SYS>>")) {
        c->kind = TR_TEMPLATE_LLAMA2;
        return recognise_llama2(q, err);
    }
    if (strstr(q, "[INST]")) {
        c->kind = TR_TEMPLATE_MISTRAL;
        return recognise_mistral(c, q, err);
    }
    return unknown(err, "it has the marks of none of these");
}

static void
set_default(char *token, const char *text)
{
    if (token[0] == '\0') {
        strcpy(token, text);
    }
}

/* The layouts that a configuration names; false for an unknown name. */
static bool
set_named(tr_chat_template_t *c, const char *name)
{
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        if (strcmp(name, names[k]) != 0) {
            continue;
        }
        c->kind = (tr_template_kind_t) k;
        if (c->kind == TR_TEMPLATE_LLAMA3) {
            c->trim = true;
            set_default(c->bos, "<|begin_of_text|>");
        } else if (c->kind == TR_TEMPLATE_CHATML) {
            c->bos[0] = '\0';
        } else if (c->kind != TR_TEMPLATE_NONE) {
            set_default(c->bos, "<s>");
            set_default(c->eos, "</s>");
        }
        if (c->kind == TR_TEMPLATE_MISTRAL) {
            strcpy(c->user_after, " ");
            strcpy(c->user_last, " ");
            c->system_place = TR_SYSTEM_FIRST_USER;
        }
        return true;
    }
    return false;
}

/* "bos_token": "<s>" or {"content": "<s>", ...}. */
static tr_status_t
read_token(const json_t *config, const char *key, char *out, size_t cap,
           tr_error_t *err)
{
    const json_t *v = json_object_get(config, key);
    const char *text = json_string_value(
        json_is_object(v) ? json_object_get(v, "content") : v);

    if (text == NULL) {
        return TR_OK;
    }
    if (strlen(text) >= cap) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer_config.json: %s is %zu bytes long, at "
                            "most %zu are possible",
                            key, strlen(text), cap - 1);
    }
    strcpy(out, text);
    return TR_OK;
}

static json_t *
read_config(const char *dir, tr_status_t *rc, tr_error_t *err)
{
    char path[4096];
    json_error_t problem;
    json_t *config;

    snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
    *rc = TR_OK;
    errno = 0;
    /* integers as reals: model_max_length is 1e30 in real files */
    config = json_load_file(path,
                            JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL,
                            &problem);
    if (config == NULL && errno != ENOENT) {
        *rc = tr_error_set(err, TR_ERR_FORMAT, "", "%s: line %d: %s", path,
                           problem.line, problem.text);
    }
    return config;
}

/* The Jinja text: chat_template.jinja of newer directories, else in the
 * configuration as a string or, named "default", in a list.  "": none. */
static tr_status_t
read_jinja(const char *dir, const json_t *config, tr_bytes_t *out,
           tr_error_t *err)
{
    const json_t *v = json_object_get(config, "chat_template"), *item;
    const char *text = json_string_value(v);
    char path[4096], part[4096];
    FILE *f;
    size_t n, i;

    snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
    f = fopen(path, "re");
    if (f != NULL) {
        bool ok = true;

        while (ok && out->len < TEMPLATE_MAX_BYTES
               && (n = fread(part, 1, sizeof(part), f)) > 0) {
            ok = tr_bytes_append(out, part, n);
        }
        fclose(f);
        if (!ok) {
            return out_of_memory(err);
        }
        if (out->len >= TEMPLATE_MAX_BYTES) {
            return tr_error_set(err, TR_ERR_FORMAT, "chat_template",
                                "%s is longer than %u bytes", path,
                                TEMPLATE_MAX_BYTES);
        }
    } else {
        json_array_foreach ((json_t *) v, i, item) {
            const char *name = json_string_value(json_object_get(item, "name"));

            if (name != NULL && strcmp(name, "default") == 0) {
                text = json_string_value(json_object_get(item, "template"));
            }
        }
        if (text != NULL && !put(out, text)) {
            return out_of_memory(err);
        }
    }
    return tr_bytes_append(out, "", 1) ? TR_OK : out_of_memory(err);
}

static tr_status_t
recognise_directory(const char *dir, const json_t *config,
                    tr_chat_template_t *c, tr_error_t *err)
{
    tr_bytes_t jinja = { 0 }, squeezed = { 0 };
    tr_status_t rc = read_jinja(dir, config, &jinja, err);

    if (rc == TR_OK && !squeeze(jinja.data, &squeezed)) {
        rc = out_of_memory(err);
    }
    if (rc == TR_OK && squeezed.data[0] == '\0') {
        c->kind = TR_TEMPLATE_NONE;
    } else if (rc == TR_OK) {
        rc = recognise(c, squeezed.data, err);
    }
    free(jinja.data);
    free(squeezed.data);
    return rc;
}

/* The tokenizer must have the marks; what ends a turn ends generation. */
static tr_status_t
check_marks(tr_chat_template_t *c, const tr_tokenizer_t *t, tr_error_t *err)
{
    static const char *const llama3[] = { "<|start_header_id|>",
                                          "<|end_header_id|>", "<|eot_id|>" };
    static const char *const chatml[] = { "<|im_start|>", "<|im_end|>" };
    const char *needed[4] = { 0 };
    uint32_t n = 0;

    if (c->kind == TR_TEMPLATE_LLAMA3) {
        memcpy(needed, llama3, sizeof(llama3));
        n = 3;
    } else if (c->kind == TR_TEMPLATE_CHATML) {
        memcpy(needed, chatml, sizeof(chatml));
        n = 2;
    } else if (c->kind != TR_TEMPLATE_NONE) {
        needed[0] = c->eos;
        n = 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        c->end_of_turn = tr_tokenizer_find(t, needed[i]);
        if (c->end_of_turn < 0) {
            return tr_error_set(err, TR_ERR_UNSUPPORTED, "chat_template",
                                "chat template %s needs the token \"%s\", "
                                "which the tokenizer does not have",
                                names[c->kind], needed[i]);
        }
    }
    if (c->bos[0] != '\0' && tr_tokenizer_find(t, c->bos) < 0) {
        return tr_error_set(err, TR_ERR_FORMAT, "",
                            "tokenizer_config.json: bos_token \"%s\" is not in "
                            "the tokenizer",
                            c->bos);
    }
    return TR_OK;
}

tr_status_t
tr_chat_template_load(const char *dir, const char *name,
                      const tr_tokenizer_t *t, tr_chat_template_t *out,
                      tr_error_t *err)
{
    tr_status_t rc;
    json_t *config;

    memset(out, 0, sizeof(*out));
    out->end_of_turn = -1;
    config = read_config(dir, &rc, err);
    if (rc == TR_OK) {
        rc = read_token(config, "bos_token", out->bos, sizeof(out->bos), err);
    }
    if (rc == TR_OK) {
        rc = read_token(config, "eos_token", out->eos, sizeof(out->eos), err);
    }
    if (rc == TR_OK && strcmp(name, "auto") == 0) {
        rc = recognise_directory(dir, config, out, err);
    } else if (rc == TR_OK && !set_named(out, name)) {
        rc = tr_error_set(err, TR_ERR_INVALID, "chat_template",
                          "chat_template \"%s\" is not known, expected auto, "
                          "llama3, chatml, llama2, mistral or none",
                          name);
    }
    json_decref(config);
    if (rc == TR_OK) {
        rc = check_marks(out, t, err);
    }
    return rc;
}
