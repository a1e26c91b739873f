// A long document to try: notes of a village, made up from a seed, and one
// question about a line in its middle.  Models that find facts in documents
// answer it; the shipped one was taught this kind (models/pocket).

const LOOKS = ('red blue green yellow purple orange white black silver golden brown '
  + 'pink brass iron copper wooden glass paper velvet ivory amber marble tin leather '
  + 'crystal clay steel').split(' ');
const THINGS = ('lamp key bell box cup kite drum clock coin ring map book hat rope '
  + 'basket candle lantern flute compass mirror bottle button whistle ladder bucket '
  + 'blanket teapot locket kettle spoon scarf globe umbrella brush hammer jar statue')
  .split(' ');
const ROOMS = ('kitchen cellar garden library attic barn harbour market station school '
  + 'bakery windmill forest meadow tower workshop stable museum orchard chapel').split(' ');
const NAMES = ('Mira Fern Ada Hazel Ivy Juno Lena Nora Opal Pia Tobin Alder Bram Cole '
  + 'Dario Emil Finn Gus Hugo Ivan Jonas Leo Milo Otto').split(' ');
const WORDS = ('acorn anchor apple arrow breeze bridge canyon castle cedar clover comet '
  + 'coral falcon fiddle galaxy ginger harbour honey island jasmine lagoon lemon maple '
  + 'marble meadow nutmeg ocean olive piano planet quartz ribbon river saddle shadow '
  + 'silk thimble thunder tulip valley velvet walnut willow zebra').split(' ');
const DAYS = 'Mon Tue Wed Thu Fri Sat Sun'.split(' ');

function random(seed) {
  let a = seed >>> 0;
  return (n) => {
    a = (Math.imul(a, 1664525) + 1013904223) >>> 0;
    return Math.floor(a / 4294967296 * n);
  };
}

export const QUESTION = 'Where is the yellow hammer stored?';

export function notes(lines = 228) {
  const pick = random(11);
  const of = (list) => list[pick(list.length)];
  const seen = new Set(['yellow hammer']);
  const once = (make) => {
    for (;;) {
      const key = make();
      if (!seen.has(key)) {
        seen.add(key);
        return key;
      }
    }
  };
  const shelf = () => `${'ABCDEFGH'[pick(8)]}${10 + pick(90)}`;
  const facts = [
    () => `The ${once(() => `${of(LOOKS)} ${of(THINGS)}`)} is stored on shelf ${shelf()}.`,
    () => `The password for the ${once(() => `${of(LOOKS.slice(0, 12))} ${of(ROOMS)}`)} is `
      + `${of(WORDS)}-${of(WORDS)}-${10 + pick(90)}.`,
    () => `Order ${once(() => String(10000 + pick(90000)))} was sent to ${of(['Penholm',
      'Wesford', 'Ashwick', 'Glenport', 'Oakdale', 'Norfield'])}.`,
    () => `${of(NAMES)} and ${of(NAMES)} walked to the ${of(ROOMS)} together.`,
    () => `Please keep the door of the ${of(ROOMS)} closed.`,
  ];
  const out = Array.from({ length: lines }, () => facts[pick(facts.length)]());
  out[Math.floor(lines * 0.62)] = 'The yellow hammer is stored on shelf C67.';
  return `Notes\n\n${out.map((line, i) =>
    `[${DAYS[Math.floor(i * 7 / lines)]}] ${line}`).join('\n')}`;
}
