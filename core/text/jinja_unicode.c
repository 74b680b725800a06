/* Unicode classes and case mapping by utf8proc, with what it lacks: the one-to-many mappings of SpecialCasing.txt and
 * the Other_Lowercase, Other_Uppercase and digit properties (Unicode 14). Locale-dependent mappings are left out, as
 * Python leaves them out. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

#include <utf8proc.h>

#include "text/jinja_unicode.h"

size_t infer_ju_invalid(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        if (p[i] < 0x80) {
            i++;
            continue;
        }
        size_t len = p[i] >= 0xF0 ? 4 : p[i] >= 0xE0 ? 3 : 2;
        if (p[i] < 0xC2 || p[i] > 0xF4 || n - i < len)
            return i;
        for (size_t k = 1; k < len; k++)
            if ((p[i + k] & 0xC0) != 0x80)
                return i;
        if ((p[i] == 0xE0 && p[i + 1] < 0xA0) || (p[i] == 0xED && p[i + 1] > 0x9F) ||
            (p[i] == 0xF0 && p[i + 1] < 0x90) || (p[i] == 0xF4 && p[i + 1] > 0x8F))
            return i;
        i += len;
    }
    return n;
}

size_t infer_ju_count(const char *p, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += ((unsigned char)p[i] & 0xC0) != 0x80;
    return k;
}

size_t infer_ju_offset(const char *p, size_t n, size_t k)
{
    size_t i = 0;
    for (; i < n; i++)
        if (((unsigned char)p[i] & 0xC0) != 0x80 && k-- == 0)
            return i;
    return n;
}

uint32_t infer_ju_next(const char *text, size_t *i)
{
    const unsigned char *p = (const unsigned char *)text + *i;
    if (p[0] < 0x80) {
        *i += 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *i += 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *i += 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *i += 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

size_t infer_ju_back(const char *p, size_t i)
{
    do
        i--;
    while (i && ((unsigned char)p[i] & 0xC0) == 0x80);
    return i;
}

void infer_ju_trim(char *text, size_t n)
{
    size_t good = infer_ju_invalid(text, n);
    if (good < n && n - good < 4)
        text[good] = 0;
}

void infer_ju_put_hex(infer_buf *b, const char *head, uint32_t v, int digits)
{
    char text[16];
    size_t n = 0;
    while (*head)
        text[n++] = *head++;
    for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4)
        text[n++] = "0123456789abcdef"[v >> shift & 15];
    infer_buf_append(b, text, n);
}

void infer_ju_put_escape(infer_buf *b, uint32_t cp)
{
    if (cp < 0x100)
        infer_ju_put_hex(b, "\\x", cp, 2);
    else if (cp < 0x10000)
        infer_ju_put_hex(b, "\\u", cp, 4);
    else
        infer_ju_put_hex(b, "\\U", cp, 8);
}

/* ---- Classes ----------------------------------------------------------------------------------------------- */

typedef struct range {
    uint32_t first, last;
} range;

/* Lowercase beyond category Ll. */
static const range other_lower[] = {
    {0xAA, 0xAA},     {0xBA, 0xBA},     {0x2B0, 0x2B8},     {0x2C0, 0x2C1},     {0x2E0, 0x2E4},     {0x345, 0x345},
    {0x37A, 0x37A},   {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78},   {0x1D9B, 0x1DBF},   {0x2071, 0x2071},   {0x207F, 0x207F},
    {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9},   {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},
    {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}, {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};
/* Uppercase beyond category Lu. */
static const range other_upper[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
/* Numeric_Type=Digit beyond category Nd. */
static const range other_digit[] = {{0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
                                    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                                    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
                                    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
                                    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

static bool in_ranges(const range *r, size_t n, uint32_t cp)
{
    for (size_t i = 0; i < n && r[i].first <= cp; i++)
        if (cp <= r[i].last)
            return true;
    return false;
}
#define IN(table, cp) in_ranges(table, sizeof table / sizeof table[0], cp)

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool infer_ju_isspace(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

bool infer_ju_isalpha(uint32_t cp)
{
    if (cp < 0x80)
        return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    utf8proc_category_t k = category(cp);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool infer_ju_isdecimal(uint32_t cp)
{
    return cp < 0x80 ? cp >= '0' && cp <= '9' : category(cp) == UTF8PROC_CATEGORY_ND;
}

bool infer_ju_isdigit(uint32_t cp)
{
    return infer_ju_isdecimal(cp) || IN(other_digit, cp);
}

bool infer_ju_isnumber(uint32_t cp)
{
    utf8proc_category_t k = category(cp);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool infer_ju_islower(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 'a' && cp <= 'z';
    return category(cp) == UTF8PROC_CATEGORY_LL || IN(other_lower, cp);
}

bool infer_ju_isupper(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 'A' && cp <= 'Z';
    return category(cp) == UTF8PROC_CATEGORY_LU || IN(other_upper, cp);
}

bool infer_ju_istitle(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LT;
}

bool infer_ju_isprintable(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 0x20 && cp < 0x7F;
    utf8proc_category_t k = category(cp);
    return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

bool infer_ju_isword(uint32_t cp)
{
    return cp == '_' || infer_ju_isalpha(cp) || infer_ju_isnumber(cp);
}

bool infer_ju_isident(uint32_t cp)
{
    if (infer_ju_isword(cp))
        return true;
    utf8proc_category_t k = cp < 0x80 ? UTF8PROC_CATEGORY_CC : category(cp);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC;
}

/* ---- Case -------------------------------------------------------------------------------------------------- */

/* Code points whose upper or title mapping has more than one code point. */
static const struct special {
    uint32_t cp, upper[3], title[3];
} specials[] = {{0xDF, {0x53, 0x53}, {0x53, 0x73}},
                {0x149, {0x2BC, 0x4E}, {0x2BC, 0x4E}},
                {0x1F0, {0x4A, 0x30C}, {0x4A, 0x30C}},
                {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
                {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
                {0x587, {0x535, 0x552}, {0x535, 0x582}},
                {0x1E96, {0x48, 0x331}, {0x48, 0x331}},
                {0x1E97, {0x54, 0x308}, {0x54, 0x308}},
                {0x1E98, {0x57, 0x30A}, {0x57, 0x30A}},
                {0x1E99, {0x59, 0x30A}, {0x59, 0x30A}},
                {0x1E9A, {0x41, 0x2BE}, {0x41, 0x2BE}},
                {0x1F50, {0x3A5, 0x313}, {0x3A5, 0x313}},
                {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
                {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
                {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
                {0x1F80, {0x1F08, 0x399}, {0x1F88}},
                {0x1F81, {0x1F09, 0x399}, {0x1F89}},
                {0x1F82, {0x1F0A, 0x399}, {0x1F8A}},
                {0x1F83, {0x1F0B, 0x399}, {0x1F8B}},
                {0x1F84, {0x1F0C, 0x399}, {0x1F8C}},
                {0x1F85, {0x1F0D, 0x399}, {0x1F8D}},
                {0x1F86, {0x1F0E, 0x399}, {0x1F8E}},
                {0x1F87, {0x1F0F, 0x399}, {0x1F8F}},
                {0x1F88, {0x1F08, 0x399}, {0x1F88}},
                {0x1F89, {0x1F09, 0x399}, {0x1F89}},
                {0x1F8A, {0x1F0A, 0x399}, {0x1F8A}},
                {0x1F8B, {0x1F0B, 0x399}, {0x1F8B}},
                {0x1F8C, {0x1F0C, 0x399}, {0x1F8C}},
                {0x1F8D, {0x1F0D, 0x399}, {0x1F8D}},
                {0x1F8E, {0x1F0E, 0x399}, {0x1F8E}},
                {0x1F8F, {0x1F0F, 0x399}, {0x1F8F}},
                {0x1F90, {0x1F28, 0x399}, {0x1F98}},
                {0x1F91, {0x1F29, 0x399}, {0x1F99}},
                {0x1F92, {0x1F2A, 0x399}, {0x1F9A}},
                {0x1F93, {0x1F2B, 0x399}, {0x1F9B}},
                {0x1F94, {0x1F2C, 0x399}, {0x1F9C}},
                {0x1F95, {0x1F2D, 0x399}, {0x1F9D}},
                {0x1F96, {0x1F2E, 0x399}, {0x1F9E}},
                {0x1F97, {0x1F2F, 0x399}, {0x1F9F}},
                {0x1F98, {0x1F28, 0x399}, {0x1F98}},
                {0x1F99, {0x1F29, 0x399}, {0x1F99}},
                {0x1F9A, {0x1F2A, 0x399}, {0x1F9A}},
                {0x1F9B, {0x1F2B, 0x399}, {0x1F9B}},
                {0x1F9C, {0x1F2C, 0x399}, {0x1F9C}},
                {0x1F9D, {0x1F2D, 0x399}, {0x1F9D}},
                {0x1F9E, {0x1F2E, 0x399}, {0x1F9E}},
                {0x1F9F, {0x1F2F, 0x399}, {0x1F9F}},
                {0x1FA0, {0x1F68, 0x399}, {0x1FA8}},
                {0x1FA1, {0x1F69, 0x399}, {0x1FA9}},
                {0x1FA2, {0x1F6A, 0x399}, {0x1FAA}},
                {0x1FA3, {0x1F6B, 0x399}, {0x1FAB}},
                {0x1FA4, {0x1F6C, 0x399}, {0x1FAC}},
                {0x1FA5, {0x1F6D, 0x399}, {0x1FAD}},
                {0x1FA6, {0x1F6E, 0x399}, {0x1FAE}},
                {0x1FA7, {0x1F6F, 0x399}, {0x1FAF}},
                {0x1FA8, {0x1F68, 0x399}, {0x1FA8}},
                {0x1FA9, {0x1F69, 0x399}, {0x1FA9}},
                {0x1FAA, {0x1F6A, 0x399}, {0x1FAA}},
                {0x1FAB, {0x1F6B, 0x399}, {0x1FAB}},
                {0x1FAC, {0x1F6C, 0x399}, {0x1FAC}},
                {0x1FAD, {0x1F6D, 0x399}, {0x1FAD}},
                {0x1FAE, {0x1F6E, 0x399}, {0x1FAE}},
                {0x1FAF, {0x1F6F, 0x399}, {0x1FAF}},
                {0x1FB2, {0x1FBA, 0x399}, {0x1FBA, 0x345}},
                {0x1FB3, {0x391, 0x399}, {0x1FBC}},
                {0x1FB4, {0x386, 0x399}, {0x386, 0x345}},
                {0x1FB6, {0x391, 0x342}, {0x391, 0x342}},
                {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
                {0x1FBC, {0x391, 0x399}, {0x1FBC}},
                {0x1FC2, {0x1FCA, 0x399}, {0x1FCA, 0x345}},
                {0x1FC3, {0x397, 0x399}, {0x1FCC}},
                {0x1FC4, {0x389, 0x399}, {0x389, 0x345}},
                {0x1FC6, {0x397, 0x342}, {0x397, 0x342}},
                {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
                {0x1FCC, {0x397, 0x399}, {0x1FCC}},
                {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
                {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
                {0x1FD6, {0x399, 0x342}, {0x399, 0x342}},
                {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
                {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
                {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
                {0x1FE4, {0x3A1, 0x313}, {0x3A1, 0x313}},
                {0x1FE6, {0x3A5, 0x342}, {0x3A5, 0x342}},
                {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
                {0x1FF2, {0x1FFA, 0x399}, {0x1FFA, 0x345}},
                {0x1FF3, {0x3A9, 0x399}, {0x1FFC}},
                {0x1FF4, {0x38F, 0x399}, {0x38F, 0x345}},
                {0x1FF6, {0x3A9, 0x342}, {0x3A9, 0x342}},
                {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
                {0x1FFC, {0x3A9, 0x399}, {0x1FFC}},
                {0xFB00, {0x46, 0x46}, {0x46, 0x66}},
                {0xFB01, {0x46, 0x49}, {0x46, 0x69}},
                {0xFB02, {0x46, 0x4C}, {0x46, 0x6C}},
                {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
                {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}},
                {0xFB05, {0x53, 0x54}, {0x53, 0x74}},
                {0xFB06, {0x53, 0x54}, {0x53, 0x74}},
                {0xFB13, {0x544, 0x546}, {0x544, 0x576}},
                {0xFB14, {0x544, 0x535}, {0x544, 0x565}},
                {0xFB15, {0x544, 0x53B}, {0x544, 0x56B}},
                {0xFB16, {0x54E, 0x546}, {0x54E, 0x576}},
                {0xFB17, {0x544, 0x53D}, {0x544, 0x56D}}};

static const struct special *special_of(uint32_t cp)
{
    size_t lo = 0, hi = sizeof specials / sizeof specials[0];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (specials[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof specials / sizeof specials[0] && specials[lo].cp == cp ? &specials[lo] : NULL;
}

static void put_all(infer_buf *b, const uint32_t *cps)
{
    for (int i = 0; i < 3 && cps[i]; i++)
        infer_buf_put_utf8(b, cps[i]);
}

static void put_upper(infer_buf *b, uint32_t cp)
{
    if (cp < 0x80) {
        infer_buf_putc(b, (char)(cp >= 'a' && cp <= 'z' ? cp - 32 : cp));
        return;
    }
    const struct special *s = special_of(cp);
    if (s)
        put_all(b, s->upper);
    else
        infer_buf_put_utf8(b, (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp));
}

static void put_title(infer_buf *b, uint32_t cp)
{
    const struct special *s = cp < 0x80 ? NULL : special_of(cp);
    if (s)
        put_all(b, s->title);
    else
        infer_buf_put_utf8(b, (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp));
}

static bool cased(uint32_t cp)
{
    return infer_ju_islower(cp) || infer_ju_isupper(cp) || infer_ju_istitle(cp);
}

static bool case_ignorable(uint32_t cp)
{
    /* Word_Break MidLetter, MidNumLet and Single_Quote. */
    static const uint32_t mid[] = {0x27,   0x2E,   0x3A,   0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                                   0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
    for (size_t i = 0; i < sizeof mid / sizeof mid[0]; i++)
        if (mid[i] == cp)
            return true;
    utf8proc_category_t k = category(cp);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

/* Unicode 3.13, Final_Sigma: a cased letter before and none after, case-ignorable ones skipped. `seen` is whether a
 * cased letter comes before. */
static bool final_sigma(const char *p, size_t n, size_t after, bool seen)
{
    if (!seen)
        return false;
    while (after < n) {
        uint32_t cp = infer_ju_next(p, &after);
        if (!case_ignorable(cp))
            return !cased(cp);
    }
    return true;
}

/* Lower-cases the code point cp that ends at `after`; *seen follows Final_Sigma's left context. */
static void put_lower(infer_buf *b, const char *p, size_t n, size_t after, uint32_t cp, bool *seen)
{
    if (cp < 0x80)
        infer_buf_putc(b, (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp));
    else if (cp == 0x3A3)
        infer_buf_put_utf8(b, final_sigma(p, n, after, *seen) ? 0x3C2 : 0x3C3);
    else if (cp == 0x130)
        infer_buf_puts(b, "i\xCC\x87");
    else
        infer_buf_put_utf8(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
    if (!case_ignorable(cp))
        *seen = cased(cp);
}

void infer_ju_upper(infer_buf *b, const char *p, size_t n)
{
    for (size_t i = 0; i < n;)
        put_upper(b, infer_ju_next(p, &i));
}

void infer_ju_lower(infer_buf *b, const char *p, size_t n)
{
    bool seen = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp = infer_ju_next(p, &i);
        put_lower(b, p, n, i, cp, &seen);
    }
}

void infer_ju_title(infer_buf *b, const char *p, size_t n)
{
    bool in_word = false, seen = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp = infer_ju_next(p, &i);
        if (in_word) {
            put_lower(b, p, n, i, cp, &seen);
        } else {
            put_title(b, cp);
            if (!case_ignorable(cp))
                seen = cased(cp);
        }
        in_word = cased(cp);
    }
}

void infer_ju_capitalize(infer_buf *b, const char *p, size_t n)
{
    bool seen = false;
    for (size_t i = 0; i < n;) {
        bool first = i == 0;
        uint32_t cp = infer_ju_next(p, &i);
        if (first) {
            put_title(b, cp);
            seen = cased(cp);
        } else {
            put_lower(b, p, n, i, cp, &seen);
        }
    }
}

void infer_ju_swapcase(infer_buf *b, const char *p, size_t n)
{
    bool seen = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp = infer_ju_next(p, &i);
        if (infer_ju_isupper(cp)) {
            put_lower(b, p, n, i, cp, &seen);
            continue;
        }
        if (infer_ju_islower(cp))
            put_upper(b, cp);
        else
            infer_buf_put_utf8(b, cp);
        if (!case_ignorable(cp))
            seen = cased(cp);
    }
}

void infer_ju_casefold(infer_buf *b, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp = infer_ju_next(p, &i);
        utf8proc_int32_t to[8];
        int boundary = 0;
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, to, 8, UTF8PROC_CASEFOLD, &boundary);
        if (k < 1 || k > 8)
            infer_buf_put_utf8(b, cp);
        for (utf8proc_ssize_t j = 0; k <= 8 && j < k; j++)
            infer_buf_put_utf8(b, (uint32_t)to[j]);
    }
}
