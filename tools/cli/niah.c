#include "niah.h"

#include "draws.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char hay[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/* Everyday words, written down for this program. */
static const char *const adjectives[] = {
    "able", "amber", "ancient", "bitter", "bold", "brave", "brief", "bright", "broad", "calm", "careful", "cheerful", "clean", "clear", "clever",
    "cold", "common", "cool", "curious", "dark", "deep", "dry", "eager", "early", "empty", "fair", "famous", "fast", "fine", "firm", "flat", "fresh",
    "full", "gentle", "glad", "golden", "good", "grand", "great", "happy", "hard", "heavy", "hidden", "high", "hollow", "honest", "humble", "icy",
    "idle", "keen", "kind", "large", "late", "lazy", "light", "little", "lively", "lone", "long", "loose", "loud", "low", "lucky", "mild", "modest",
    "narrow", "neat", "new", "noble", "odd", "old", "open", "pale", "patient", "plain", "polite", "proud", "pure", "quick", "quiet", "rapid", "rare",
    "ready", "rich", "ripe", "rough", "round", "rusty", "sharp", "short", "shy", "silent", "silver", "simple", "slow", "small", "smooth", "soft",
    "solid", "steady", "steep", "still", "strange", "strong", "sweet", "tall", "tender", "thick", "thin", "tidy", "tiny", "tired", "useful", "warm",
    "wet", "white", "whole", "wide", "wild", "wise", "wooden", "young"};
static const char *const nouns[] = {
    "anchor", "apple", "arrow", "badge", "baker", "barn", "basket", "beach", "bell", "bench", "bird", "blanket", "boat", "book", "bottle", "branch",
    "bread", "bridge", "broom", "brother", "bucket", "butter", "button", "cabin", "candle", "carpet", "castle", "chair", "cherry", "church", "clock",
    "cloud", "coat", "coin", "cook", "corner", "cousin", "cow", "cradle", "crown", "cup", "curtain", "desert", "doctor", "door", "dress", "drum",
    "eagle", "engine", "farmer", "feather", "fence", "field", "fish", "flag", "flower", "forest", "fountain", "fox", "garden", "gate", "glass",
    "glove", "goat", "guest", "hammer", "harbour", "hat", "hill", "horse", "house", "island", "jacket", "key", "kitchen", "ladder", "lake", "lamp",
    "lantern", "leaf", "letter", "lion", "map", "market", "meadow", "melon", "mill", "mirror", "morning", "mountain", "needle", "nest", "net", "oak",
    "ocean", "onion", "orchard", "oven", "owl", "painter", "paper", "path", "pearl", "pencil", "piano", "pillow", "plate", "pocket", "pond",
    "queen", "rabbit", "rain", "ribbon", "river", "road", "roof", "room", "rope", "rose", "sailor", "school", "shadow", "sheep", "shell", "ship",
    "shirt", "shoe", "shop", "sister", "snow", "soup", "spoon", "spring", "stable", "star", "stone", "storm", "street", "sugar", "table", "tailor",
    "teacher", "thunder", "ticket", "tiger", "tower", "train", "tree", "uncle", "valley", "village", "violin", "wagon", "wall", "water", "wheel",
    "window", "winter", "wolf", "wood", "wool", "yard"};
static const char *const verbs[] = {"admires", "answers", "avoids", "carries", "covers", "crosses", "draws", "finds", "follows", "greets", "guards",
                                    "hears", "helps", "hides", "holds", "knows", "leaves", "likes", "meets", "misses", "moves", "needs", "notices",
                                    "passes", "pulls", "reaches", "sees", "sells", "shows", "touches", "turns", "visits", "wants", "watches"};
static const char *const places[] = {"above", "behind", "below", "beside", "in front of", "near", "not far from", "on the way to", "opposite"};

#define ANY(d, words) (words)[draws_below((d), (uint32_t)(sizeof(words) / sizeof *(words)))]

/* ---- Haystacks ---- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool niah_haystack_of(niah_haystack *haystack, const char *text, size_t bytes)
{
    size_t used = 0, words = 0;
    for (size_t i = 0; i < bytes; i++) words += !is_space(text[i]) && (i == 0 || is_space(text[i - 1]));
    if (words > UINT32_MAX) return false;
    haystack->text = malloc(bytes + 2);
    haystack->ends = malloc((words + 1) * sizeof *haystack->ends);
    if (haystack->text == NULL || haystack->ends == NULL) return false;
    haystack->words = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (is_space(text[i])) continue;
        if (i == 0 || is_space(text[i - 1])) {
            if (used > 0) haystack->text[used++] = ' ';
            haystack->words++;
        }
        haystack->text[used++] = text[i];
        haystack->ends[haystack->words - 1] = used;
    }
    return true;
}

bool niah_haystack_make(niah_haystack *haystack, uint64_t seed, uint32_t words)
{
    enum { SENTENCE = 128, LEAST = 6 }; /* bytes at most, words at least */
    const size_t sentences = words / LEAST + 1;
    draws d = draws_of(seed, UINT64_C(0x686179)); /* of its own: samples have indices below 2^20 */
    char *text = malloc(sentences * SENTENCE);
    size_t used = 0;
    if (text == NULL) return false;
    for (size_t i = 0; i < sentences; i++) {
        const char *subject = ANY(&d, adjectives), *who = ANY(&d, nouns), *verb = ANY(&d, verbs);
        const char *object = ANY(&d, adjectives), *what = ANY(&d, nouns);
        char *at = text + used;
        if (draws_below(&d, 2) == 0) used += (size_t)snprintf(at, SENTENCE, "The %s %s %s the %s %s. ", subject, who, verb, object, what);
        else {
            const char *place = ANY(&d, places), *where = ANY(&d, nouns);
            used += (size_t)snprintf(at, SENTENCE, "The %s %s %s the %s %s the %s. ", subject, who, verb, what, place, where);
        }
    }
    const bool made = niah_haystack_of(haystack, text, used);
    free(text);
    return made;
}

void niah_haystack_free(niah_haystack *haystack)
{
    free(haystack->text);
    free(haystack->ends);
    haystack->text = NULL;
    haystack->ends = NULL;
}

/* ---- Samples ---- */

/* A UUID of version 4, of which 122 bits are random. */
static void make_uuid(draws *d, char value[40])
{
    const uint64_t high = (draws_bits(d) & ~UINT64_C(0xF000)) | UINT64_C(0x4000);
    const uint64_t low = (draws_bits(d) & ~(UINT64_C(3) << 62)) | UINT64_C(1) << 63;
    snprintf(value, 40, "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64, high >> 32, high >> 16 & 0xFFFF, high & 0xFFFF,
             low >> 48, low & UINT64_C(0xFFFFFFFFFFFF));
}

/* A sentence ends at the byte before `i`: a mark and perhaps quotes, then a blank. */
static bool ends_sentence(const char *text, size_t i)
{
    size_t mark = i;
    while (mark > 0 && strchr("\"')]", text[mark - 1]) != NULL) mark--;
    return text[i] == ' ' && mark > 0 && strchr(".!?", text[mark - 1]) != NULL;
}

/* The place behind the first `count` sentences of a text, or with count UINT32_MAX the number of sentences. */
static size_t sentences(const char *text, size_t bytes, uint32_t count)
{
    uint32_t seen = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (!ends_sentence(text, i)) continue;
        if (++seen == count) return i;
    }
    return count == UINT32_MAX ? seen + (bytes > 0) : bytes;
}

static char *append(char *to, const char *text, size_t bytes)
{
    memcpy(to, text, bytes);
    return to + bytes;
}

/* Lines, the needle as one of them before the last. */
static char *put_lines(char *to, uint32_t units, uint32_t place, const char *needle)
{
    for (uint32_t i = 0; i < units; i++) {
        if (i == place) {
            to = append(to, needle, strlen(needle));
            *to++ = '\n';
        }
        to = append(to, hay, sizeof hay - 1);
        if (i + 1 < units) *to++ = '\n';
    }
    return to;
}

/* Sentences, the needle between two of them at one of 40 depths from 0 to 100 %. A blank is on both sides of it, at the ends of the text, too. */
static char *put_text(char *to, const niah_haystack *haystack, uint32_t units, uint32_t depth, const char *needle)
{
    const size_t bytes = haystack->ends[(units < haystack->words ? units : haystack->words) - 1];
    const uint32_t count = (uint32_t)sentences(haystack->text, bytes, UINT32_MAX), percent = (200 * depth + 39) / 78; /* 100 depth / 39, rounded */
    const uint32_t before = (uint32_t)(count * (percent / 100.0));
    const size_t place = before == 0 ? 0 : sentences(haystack->text, bytes, before);
    to = append(to, haystack->text, place);
    *to++ = ' ';
    to = append(to, needle, strlen(needle));
    *to++ = ' ';
    const size_t rest = place > 0 && place < bytes ? place + 1 : place; /* the blank between the sentences is written */
    return append(to, haystack->text + rest, bytes - rest);
}

bool niah_make(const niah_haystack *haystack, uint64_t seed, uint64_t index, uint32_t units, niah_sample *sample)
{
    draws d = draws_of(seed, index);
    const char *kind = haystack->task == 3 ? "uuid" : "number";
    const char *adjective = ANY(&d, adjectives);
    char needle[160], text[256];
    snprintf(sample->key, sizeof sample->key, "%s-%s", adjective, ANY(&d, nouns));
    if (haystack->task == 3) make_uuid(&d, sample->value);
    else snprintf(sample->value, sizeof sample->value, "%" PRIu32, 1000000 + draws_below(&d, 9000000));
    snprintf(needle, sizeof needle, "One of the special magic %ss for %s is: %s.", kind, sample->key, sample->value);
    snprintf(sample->prefix, sizeof sample->prefix, "The special magic %s for %s mentioned in the provided text is", kind, sample->key);

    const size_t lines = haystack->task == 1 ? (size_t)units * sizeof hay : haystack->ends[haystack->words - 1];
    sample->input = malloc(lines + 1024);
    if (sample->input == NULL) return false;
    int n = snprintf(text, sizeof text, "A special magic %s is hidden within the following text. Make sure to memorize it. I will quiz you about "
                     "the %s afterwards.\n", kind, kind);
    char *to = append(sample->input, text, (size_t)n);
    if (haystack->task == 1) to = put_lines(to, units, draws_below(&d, units), needle);
    else to = put_text(to, haystack, units, draws_below(&d, 40), needle);
    n = snprintf(text, sizeof text, "\nWhat is the special magic %s for %s mentioned in the provided text?", kind, sample->key);
    to = append(to, text, (size_t)n);
    *to = '\0';
    return true;
}

bool niah_right(const char *value, const char *answer, size_t bytes)
{
    const size_t length = strlen(value);
    for (size_t i = 0; i + length <= bytes; i++) {
        size_t same = 0;
        while (same < length) { /* a value has no capital letters */
            const int c = (unsigned char)answer[i + same], small = c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
            if (small != (unsigned char)value[same]) break;
            same++;
        }
        if (same == length) return true;
    }
    return false;
}
