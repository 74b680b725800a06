/*
 * Random words, as many as a tokenizer wants for a length. SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "load.h"

/* Common words, most of which are one token with a space before them. */
static const char *const words[] = {
    "about",   "above",   "across",  "act",      "after",    "again",    "air",      "all",      "along",   "also",
    "always",  "among",   "animal",  "answer",   "appear",   "area",     "ask",      "away",     "back",    "base",
    "beauty",  "because", "become",  "been",     "before",   "began",    "behind",   "best",     "better",  "between",
    "big",     "bird",    "black",   "blue",     "boat",     "body",     "book",     "both",     "box",     "boy",
    "bring",   "brought", "build",   "busy",     "call",     "came",     "can",      "car",      "care",    "carry",
    "cause",   "center",  "certain", "change",   "check",    "child",    "city",     "class",    "clear",   "close",
    "cold",    "color",   "come",    "common",   "complete", "contain",  "correct",  "could",    "country", "course",
    "cover",   "cross",   "cry",     "cut",      "dark",     "day",      "decide",   "deep",     "develop", "differ",
    "direct",  "dog",     "door",    "down",     "draw",     "dry",      "during",   "each",     "early",   "earth",
    "ease",    "east",    "eat",     "end",      "enough",   "even",     "ever",     "every",    "example", "explain",
    "eye",     "face",    "fact",    "fall",     "family",   "far",      "farm",     "fast",     "father",  "feel",
    "feet",    "few",     "field",   "figure",   "final",    "find",     "fine",     "fire",     "first",   "fish",
    "five",    "fly",     "follow",  "food",     "foot",     "force",    "form",     "four",     "free",    "friend",
    "from",    "front",   "full",    "game",     "general",  "get",      "girl",     "give",     "gold",    "good",
    "govern",  "great",   "green",   "ground",   "group",    "grow",     "half",     "hand",     "happen",  "hard",
    "head",    "hear",    "heat",    "help",     "here",     "high",     "hold",     "home",     "horse",   "hot",
    "hour",    "house",   "hundred", "idea",     "inch",     "interest", "island",   "just",     "keep",    "kind",
    "king",    "know",    "land",    "language", "large",    "last",     "late",     "laugh",    "law",     "lay",
    "lead",    "learn",   "leave",   "left",     "less",     "letter",   "life",     "light",    "like",    "line",
    "list",    "listen",  "little",  "live",     "long",     "look",     "love",     "low",      "machine", "made",
    "main",    "make",    "many",    "map",      "mark",     "measure",  "men",      "mile",     "mind",    "minute",
    "money",   "moon",    "more",    "morning",  "most",     "mother",   "mountain", "move",     "much",    "music",
    "must",    "name",    "near",    "need",     "never",    "new",      "next",     "night",    "north",   "note",
    "nothing", "notice",  "noun",    "now",      "number",   "object",   "ocean",    "off",      "often",   "old",
    "once",    "open",    "order",   "other",    "over",     "own",      "page",     "paint",    "paper",   "part",
    "pass",    "pattern", "people",  "perhaps",  "person",   "picture",  "piece",    "place",    "plain",   "plan",
    "plane",   "plant",   "play",    "point",    "port",     "pose",     "possible", "pound",    "power",   "press",
    "problem", "produce", "product", "pull",     "put",      "question", "quick",    "rain",     "reach",   "read",
    "ready",   "real",    "record",  "red",      "remember", "rest",     "right",    "river",    "road",    "rock",
    "room",    "round",   "rule",    "run",      "same",     "saw",      "school",   "science",  "sea",     "second",
    "see",     "seem",    "self",    "sentence", "serve",    "set",      "several",  "shape",    "ship",    "short",
    "should",  "show",    "side",    "simple",   "since",    "sing",     "six",      "size",     "sleep",   "slow",
    "small",   "snow",    "some",    "song",     "soon",     "sound",    "south",    "special",  "spell",   "stand",
    "star",    "start",   "state",   "stay",     "step",     "still",    "stood",    "stop",     "story",   "street",
    "strong",  "study",   "such",    "sun",      "sure",     "surface",  "table",    "tail",     "take",    "talk",
    "teach",   "tell",    "ten",     "test",     "than",     "that",     "their",    "then",     "there",   "thing",
    "think",   "though",  "thought", "thousand", "three",    "through",  "time",     "together", "told",    "took",
    "top",     "toward",  "town",    "travel",   "tree",     "true",     "try",      "turn",     "two",     "under",
    "unit",    "until",   "use",     "usual",    "very",     "voice",    "vowel",    "wait",     "walk",    "want",
    "warm",    "watch",   "water",   "week",     "well",     "went",     "west",     "what",     "wheel",   "where",
    "which",   "while",   "white",   "whole",    "will",     "wind",     "with",     "wonder",   "wood",    "word",
    "work",    "world",   "write",   "year",     "young"};
enum { N_WORDS = sizeof words / sizeof words[0] };

struct load_words {
    const infer_tokenizer *tok;
    uint32_t length[N_WORDS]; /* with a space before it */
};

uint32_t load_words_count(const load_words *w, const char *text, size_t n)
{
    if (w->tok) {
        int32_t *ids;
        size_t n_ids;
        if (infer_tokenizer_encode(w->tok, text, n, 0, &ids, &n_ids, NULL) < 0)
            return 0;
        infer_ids_free(ids);
        return n_ids > UINT32_MAX ? UINT32_MAX : (uint32_t)n_ids;
    }
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += text[i] != ' ' && (!i || text[i - 1] == ' ');
    return count;
}

load_words *load_words_create(const infer_tokenizer *tok)
{
    load_words *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->tok = tok;
    /* What a word adds to a text, not what it is alone, where some tokenizers put a space before it. */
    char text[64] = "the";
    uint32_t alone = load_words_count(w, text, 3);
    for (size_t i = 0; i < N_WORDS; i++) {
        int n = snprintf(text, sizeof text, "the %s", words[i]);
        uint32_t both = load_words_count(w, text, (size_t)n);
        w->length[i] = both > alone ? both - alone : 1;
    }
    return w;
}

void load_words_destroy(load_words *w)
{
    free(w);
}

static void add_word(size_t i, sbuf *to)
{
    if (to->n)
        sbuf_add(to, " ", 1);
    sbuf_puts(to, words[i]);
}

uint32_t load_words_add(const load_words *w, uint64_t *random, uint32_t n, sbuf *to)
{
    enum { TRIES = 256 };
    const size_t start = to->n, least = start + 1 + (start > 0);
    const uint32_t before = start ? load_words_count(w, to->p, start) : 0;
    uint32_t have = 0;
    do {
        size_t i = (size_t)(load_random(random) % N_WORDS);
        if (have && have + w->length[i] > n)
            break;
        add_word(i, to);
        have += w->length[i];
    } while (have < n && !to->failed);
    if (to->failed)
        return 0;
    if (!w->tok)
        return have;
    /* The words' lengths add up only nearly: letters close the gap, and what is too long loses some. */
    for (int i = 0; i < TRIES && !to->failed; i++) {
        uint32_t all = load_words_count(w, to->p, to->n);
        have = all > before ? all - before : 0;
        if (have < n && i < TRIES / 2) {
            size_t word = (size_t)(load_random(random) % N_WORDS);
            if (w->length[word] <= n - have)
                add_word(word, to);
            else
                sbuf_add(to, words[word], 1);
        } else if (have > n && to->n > least) {
            to->p[--to->n] = 0;
        } else {
            break;
        }
    }
    return have;
}
