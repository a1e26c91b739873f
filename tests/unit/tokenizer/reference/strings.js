'use strict';
//
// The strings to compare on: every kind of text that a tokenizer treats in a
// way of its own.  All characters are of Unicode 14 or older, because the
// tables of the libraries compared end at different versions.

const SCRIPTS = {
  latin: [0x41, 0x5a, 0x61, 0x7a], latin1: [0xc0, 0xff],
  latinExtended: [0x100, 0x24f], ipa: [0x250, 0x2af], greek: [0x391, 0x3a1],
  greekExtended: [0x1f00, 0x1f15], cyrillic: [0x410, 0x44f],
  armenian: [0x531, 0x556], hebrew: [0x5d0, 0x5ea], arabic: [0x620, 0x64a],
  arabicForms: [0xfe8d, 0xfefc], syriac: [0x712, 0x72f],
  thaana: [0x780, 0x7a5], nko: [0x7ca, 0x7ea], devanagari: [0x904, 0x939],
  devanagariSigns: [0x93e, 0x94d], bengali: [0x995, 0x9a8],
  gurmukhi: [0xa15, 0xa28], gujarati: [0xa95, 0xaa8], oriya: [0xb15, 0xb28],
  tamil: [0xb95, 0xb95, 0xbae, 0xbb9], telugu: [0xc15, 0xc28],
  kannada: [0xc95, 0xca8], malayalam: [0xd15, 0xd28],
  sinhala: [0xd9a, 0xdb1], thai: [0xe01, 0xe30, 0xe40, 0xe4e],
  lao: [0xe94, 0xea3], tibetan: [0xf40, 0xf47], myanmar: [0x1000, 0x102a],
  georgian: [0x10d0, 0x10fa], ethiopic: [0x1200, 0x1248],
  cherokee: [0x13a0, 0x13f5], canadian: [0x1401, 0x1676],
  khmer: [0x1780, 0x17b3], mongolian: [0x1820, 0x1878],
  jamo: [0x1100, 0x1112, 0x1161, 0x1175, 0x11a8, 0x11c2],
  hangul: [0xac00, 0xd7a3], hiragana: [0x3041, 0x3096],
  katakana: [0x30a1, 0x30fa], halfwidth: [0xff66, 0xff9d],
  bopomofo: [0x3105, 0x312f], han: [0x4e00, 0x9fff],
  hanExtensionA: [0x3400, 0x4dbf], hanExtensionB: [0x20000, 0x2a6dd],
  hanCompatibility: [0xf900, 0xfa6d], yi: [0xa000, 0xa48c],
  gothic: [0x10330, 0x1034a], deseret: [0x10400, 0x1044f],
  cuneiform: [0x12000, 0x12399], hieroglyphs: [0x13000, 0x1342e],
  mathLetters: [0x1d400, 0x1d454], fullwidth: [0xff21, 0xff3a],
};
const DIGITS = [[0x30, 0x39], [0x660, 0x669], [0x966, 0x96f], [0xe50, 0xe59],
                [0xff10, 0xff19], [0x1d7ce, 0x1d7ff], [0x2160, 0x216b],
                [0xb2, 0xb3], [0xbc, 0xbe], [0x2460, 0x2473], [0x3220, 0x3229]];
const SPACES = [' ', ' ', ' ', '  ', '\n', '\n', '\r\n', '\r', '\t', '\v',
                '\f', '\u0085', '\u00a0', '\u1680', '\u180e', '\u2000',
                '\u2003', '\u2009', '\u200a', '\u2028', '\u2029', '\u202f',
                '\u205f', '\u3000', '\u200b', '\ufeff'];
const PUNCTUATION = [...'.,;:!?\'"()[]{}<>-_/\\|@#$%^&*+=~`', '—', '…', '«',
                     '»', '“', '”', '‘', '’', '¿', '¡', '。', '、', '「', '」',
                     '․', '•', '°', '€', '£', '₿', '™', '→', '≠', '∑', '█',
                     '▁', 'Ġ', '�'];
const MARKS = [0x300, 0x301, 0x302, 0x303, 0x307, 0x308, 0x30a, 0x316, 0x323,
               0x327, 0x328, 0x334, 0x338, 0x340, 0x341, 0x343, 0x344, 0x345,
               0x5b0, 0x5b4, 0x5bc, 0x5c1, 0x64b, 0x64c, 0x651, 0x93c, 0x94d,
               0xe38, 0xf71, 0x1dc0, 0x20d0, 0x3099, 0x309a, 0xfe20];
const SINGLETONS = [...'ÅKΩ;·ﬁﬂﬀ①½ⅣﷺゟＡｱﾞ각힣', '\u0958', '\u0344',
                    '\u2126', '\u1e9b\u0323', '\u0f73', '\ufb1d', '\u2adc',
                    '\u0130', '\u0131', '\u017f', '\u01c5', '\u1e9e',
                    '\u03c2', '\u0149', '\u3392'];
const EMOJI = ['😀', '👍', '👍🏽', '👩‍👩‍👧‍👦', '👩🏿‍🚀', '🏳️‍🌈', '🏴‍☠️', '🇩🇪', '🇯🇵🇫🇷', '1️⃣',
               '#️⃣', '❤️', '❤', '☺️', '🧑‍🤝‍🧑', '👨🏻‍❤️‍💋‍👨🏿', '🫠', '🥷',
               '🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}',
               '\u200d', '\ufe0f', '\u{1f3fb}', '©️', '㊗️', '🐦‍⬛'];
const WORDS = ['the', 'Hello', 'world', 'don\'t', 'I\'M', 'we\'ve', 'YOU\'LL',
               'it\'S', 'o\'clock', '\'tis', 'HTTPServer', 'camelCase',
               'snake_case', 'kebab-case', 'e.g.', 'U.S.A.', 'naïve', 'Straße',
               'café', 'cafe\u0301', 'über', 'Ελλάς', 'Москва', 'x86_64',
               'antidisestablishmentarianism', 'zzzzqqqq', '\'ſ', '\'K',
               'ſoft', 'qué', '3rd', '42', '1,000.00', '0x1F', '2024-07-26'];
const CODE = ['def f(x):\n    return x ** 2\n', 'for (int i = 0; i < n; i++) {',
              '\n\t\tif (a && !b) { return NULL; }\n', '#include <stdio.h>\n',
              '<div class="a">&nbsp;</div>', 'SELECT * FROM t WHERE a >= 1;\n',
              '{"key": [1, 2.5e-3, null]}', '// ----------\n', '/* *** */',
              'print(f"{x!r:>10}")\n', '\\frac{a}{b}', 'x <- c(1,2)\n',
              'let s = `a${b}`;', '\n\n\n', '        ', '\\u00e9\\n',
              'https://example.org/a?b=c&d=%20#e', '==================',
              '!!!???...', '-->', '=>', '::', '\'\'\'', '"""', '$$'];
// Unknown to every byte-level alphabet's first page, rare everywhere.
const RARE = ['\u0378', '\ue000', '\uf8ff', '\ufdd0', '\uffff', '\u{1f9ff}',
              '\u{10ffff}', '\u{e0001}', '\ufffd', '\ufffe', '\u{f0000}'];

function character(r, ranges) {
  const i = r.below(ranges.length / 2) * 2;

  return String.fromCodePoint(ranges[i] +
                              r.below(ranges[i + 1] - ranges[i] + 1));
}

const makers = {
  script: r => {
    const ranges = r.pick(Object.values(SCRIPTS));
    return r.repeat(1, 6, () =>
      r.repeat(1, 9, () => character(r, ranges)) + r.pick(SPACES));
  },
  words: r => r.repeat(1, 12, () =>
    r.pick(WORDS) + (r.below(4) ? ' ' : r.pick(PUNCTUATION))),
  spaces: r => r.repeat(1, 4, () =>
    r.repeat(1, 9, () => r.pick(SPACES)) + r.pick(['', 'a', '1', '.', 'é'])),
  spaceRuns: r => r.repeat(1, 4, () =>
    r.pick([' ', '\n', '\t', '\r\n', ' \n', '\u00a0']).repeat(1 + r.below(70)) +
    r.pick(['', 'x', '9', '!'])),
  control: r => r.repeat(1, 9, () =>
    String.fromCharCode(r.pick([r.below(32), 127 + r.below(33)])) +
    r.pick(['', 'a', ' '])),
  digits: r => r.repeat(1, 5, () =>
    r.repeat(1, 12, () => character(r, r.pick(DIGITS))) +
    r.pick([' ', '', ',', '.'])),
  punctuation: r => r.repeat(1, 20, () =>
    r.pick(PUNCTUATION) + r.pick(['', '', ' ', 'a', '\n'])),
  marks: r => r.repeat(1, 5, () =>
    r.pick(['a', 'e', 'ö', 'の', 'ק', 'ي', 'क', ' ', 'ﬁ', '\u1100', '가']) +
    r.repeat(0, 6, () => String.fromCodePoint(r.pick(MARKS)))),
  singletons: r => r.repeat(1, 9, () =>
    r.pick(SINGLETONS) + r.pick(['', ' ', 'a'])),
  emoji: r => r.repeat(1, 8, () => r.pick(EMOJI) + r.pick(['', '', ' ', 'a'])),
  code: r => r.repeat(1, 8, () => r.pick(CODE) + r.pick(['', ' ', '\n'])),
  rare: r => r.repeat(1, 5, () => r.pick(RARE) + r.pick(['', ' ', 'b'])),
  longWord: r => r.pick(['a', 'ab', 'é', '漢', 'x1', '😀', '=', '\u0301'])
    .repeat(100 + r.below(900)),
  longText: r => r.repeat(200, 400, () => r.pick(WORDS) + ' '),
};
makers.mixed = r => r.repeat(2, 5, () =>
  makers[r.pick(['script', 'words', 'spaces', 'control', 'digits', 'marks',
                 'punctuation', 'singletons', 'emoji', 'code', 'rare'])](r));

// Special tokens in text, whole, cut and doubled, with all kinds of neighbours.
function withSpecials(r, specials) {
  return r.repeat(1, 6, () => {
    const token = r.pick(specials);
    const part = r.below(4) ? token : token.slice(0, 1 + r.below(token.length));

    return r.pick(['', ' ', 'a', '\n', '  ', 'é', '<', '<|', '.']) + part +
           r.pick(['', ' ', 'b', '\n', ' \t', '日', '>', '|>']);
  });
}

// Pieces are whole characters, so that no lone surrogate arises: it is no text.
function* strings(r, specials, perKind) {
  yield '';
  for (const [kind, make] of Object.entries(makers)) {
    const n = kind.startsWith('long') ? Math.ceil(perKind / 20) : perKind;

    for (let i = 0; i < n; i++) {
      yield make(r);
    }
  }
  for (let i = 0; i < perKind; i++) {
    yield withSpecials(r, specials);
  }
}

module.exports = { strings };
