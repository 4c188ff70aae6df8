"""Provide words, invented words and values, split into a training and an evaluation set.

A `Lexicon` draws words and values for one side of the split. The hash of
a string decides its side, so the evaluation never uses a word, name or number pair of the training set.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from copy import copy
from typing import Literal, TypeVar

Split = Literal["train", "eval"]
T = TypeVar("T")


def _list(text: str) -> list[str]:
    return text.split()


NOUNS = _list("""
apple arrow badge bag ball banana bank basket battery beach bean bell bench bike bird blanket block board
boat book boot bottle box branch bread brick bridge broom bucket builder button cabin cable cake camera
camp candle canvas card carpet cart castle cellar chain chair chalk channel chart chess cliff clock cloud
coal coast coat coffee coin column comet compass copper coral cotton counter cousin cradle crane crate
cream creek cricket crown crystal cup curtain daisy dance desert desk diary dinner dish dock doctor dog
dollar donkey door dragon drawer dream drum duck eagle earth echo egg elbow elephant engine envelope
estate evening fabric factory falcon farm feather fence fern ferry fever field finger fire fish flag flame
flask flock floor flour flower flute fog forest fork fossil fountain fox frame freight frost fruit fuel
garage garden garlic gate ghost giant ginger giraffe glass glove goat gold grain grape grass gravel guitar
hall hammer harbor harvest hat hawk heart hedge helmet hill hinge holiday honey hook horse hotel hour
house ice index ink insect iron island ivory jacket jar jewel journal judge juice jungle kettle key
kitchen kite knife knot ladder lake lamp lantern laptop lawn leaf leather lemon lens letter lever library
light lily linen lion lizard lock log magnet mango map maple marble market mask meadow medal melon memory
mill mineral mirror model moon morning moss motor mountain mouse museum mushroom music nail napkin needle
nest net night north number oak oasis ocean office olive onion orange orchard orchid organ otter oven owl
oyster package page paint palace palm panel paper parcel parrot path peach peanut pearl pebble pencil
pepper piano picture pigeon pillow pine pipe pirate planet plant plate plum pocket poem pond pony potato
powder prairie prism prize pump puppet puzzle quarry quartz queen quilt rabbit radio rail rain raven
recipe record reef ribbon rice ridge ring river road robot rocket roof room root rope rose rubber saddle
sail salad salmon salt sand sandwich satchel saucer scarf school screen sea seed shadow sheep shelf shell
ship shirt shoe shop shovel signal silk silver sister sketch sky sled sleeve snail snow soap sock sofa
soil song soup spark sparrow spice spider spoon spring square squirrel stable stamp star station statue
steam steel stone storm story stove straw stream street string student sugar summer sun swan sweater sword
table tail tea teacher temple tent theater thread throne thunder ticket tiger timber toast tomato tool
torch tower town toy track tractor train treasure tree trumpet tulip tunnel turtle umbrella uncle valley
van vase velvet vessel village vine violin voice volcano wagon walnut walrus watch water wave wax well
whale wheat wheel whistle willow wind window winter wire wolf wood wool yard yarn zebra
""")

# Objects of tools, in addition to the nouns above.
TOPICS = _list("""
account alarm album answer area article balance bill booking budget calendar call category channel client
code comment contact contract course currency customer date deadline delivery demand depth device discount
distance document draft duration email employee entry error event exchange expense file flight folder
forecast form game group guest height history image inventory invoice issue item job journey label lead
lesson level limit link list location log lyrics meal meeting member menu message meter method movie news
note notice offer option order owner password patient payment payroll permit person phone photo plan
player playlist point policy post pressure price product profile project property quote rank rate rating
reading receipt region reminder rent report request reserve result review reward rider route salary sale
sample schedule score seat section sensor server service session shift shipment size slot source speed
staff state stock storage subject supply survey symbol task tax team temperature test theme thread time
title token topic tour trade traffic transfer trend trip unit user value vehicle vendor version video
visit volume wage weather weight word zone
""")

VERBS = _list("""
add apply archive arrange assign attach block book browse build calculate call cancel change charge check
choose clean clear close collect compare compute confirm convert copy count create delete deliver describe
detect download draw edit estimate evaluate export extract fetch filter find fix get group hide import
insert inspect install join launch list load locate lock log look mark measure merge move mute notify open
order pause pay pick place plan play post predict print process publish pull push query rank rate read
record refresh register reload remove rename rent repair replace reply report request reserve reset resize
resolve restart resume retrieve review run save scan schedule search select sell send set share ship show
sort split start stop store submit subscribe suggest summarize switch sync tag test trace track train
transfer translate turn unlock update upload validate verify view visit watch weigh wrap write
""")

ADJECTIVES = _list("""
active ancient bitter black blue bold brave brief bright broad brown calm careful cheap clean clear clever
cold cool curly daily damp dark dear deep dry early easy empty fair famous fast final fine firm flat fresh
full gentle glad golden grand gray great green happy hard heavy hidden high hollow honest hot huge humble
icy kind large late lazy light little local lonely long loud lovely lucky main mild modern narrow neat new
next noble odd old open pale plain pink polite poor pretty proud purple quick quiet rapid rare raw ready
red rich ripe rough round royal safe salty secret shallow sharp shiny short shy silent simple slow small
smart smooth soft solid sour spare steady stiff strange strong sunny sweet swift tall tame tender thick
thin tiny tired tough upper urgent useful vast warm weak wet white wide wild wise wooden yellow young
""")

NAMES = _list("""
Ada Adam Agnes Aisha Alan Albert Alice Amir Amy Ana Andre Anna Anton Arthur Asha Ben Bella Boris Bruno
Carla Carlos Cedric Chen Chloe Clara Claude Cora Dana Daniel Daria David Dora Edgar Edith Elena Elias Ella
Elsa Emil Emma Eric Esther Eva Fatima Felix Fiona Frank Freya Gina Grace Greta Gustav Hana Hannah Hassan
Hector Helen Henry Hugo Ida Igor Ines Irene Iris Isaac Ivan Ivy Jack Jacob James Jana Jasmin Jasper Joan
Joel John Jonas Julia Kamal Karen Karl Kate Kenji Kira Lara Laura Lea Leo Lena Liam Lina Linus Lisa Lola
Louis Lucas Lucy Luna Maja Marco Maria Mark Martha Martin Mary Max Maya Mia Mila Mina Mira Mohamed Mona
Nadia Nathan Nina Noah Nora Olga Oliver Olivia Omar Oscar Otto Owen Paul Paula Pedro Peter Petra Philip
Pia Priya Rachel Rafael Ravi Rita Robert Rosa Ruby Ruth Sam Samira Samuel Sara Sean Selma Simon Sofia
Stella Sven Tanya Tara Theo Thomas Tilda Tina Tom Uma Vera Victor Viola Walter Wanda Wendy Willa Yara Yuki
Yusuf Zara Zelda Zoe Zora
""")

CITIES = _list("""
Accra Aleppo Amsterdam Ankara Antwerp Athens Auckland Austin Baghdad Bali Bangkok Barcelona Basel Beijing
Belfast Belgrade Bergen Berlin Bern Bogota Bonn Boston Bremen Brisbane Bristol Brussels Bucharest Budapest
Cairo Calgary Cardiff Chicago Cologne Copenhagen Cordoba Cork Dakar Dallas Damascus Delhi Denver Detroit
Dresden Dubai Dublin Durban Edinburgh Florence Frankfurt Geneva Genoa Ghent Glasgow Granada Graz Hamburg
Hanoi Harare Havana Helsinki Houston Istanbul Jakarta Kabul Kampala Karachi Kathmandu Kiel Kiev Kigali
Krakow Kyoto Lagos Lahore Leeds Leipzig Lima Lisbon Liverpool London Lund Luxor Lyon Madrid Malaga Malmo
Manchester Manila Marseille Melbourne Memphis Miami Milan Minsk Monaco Montreal Moscow Mumbai Munich
Nairobi Nantes Naples Nice Oakland Odessa Oran Osaka Oslo Ottawa Oxford Palermo Paris Perth Phoenix Pisa
Porto Portland Prague Pretoria Quebec Quito Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville
Shanghai Sofia Split Stockholm Sydney Taipei Tallinn Tampa Tehran Tokyo Toronto Trieste Tripoli Tunis
Turin Utrecht Valencia Vancouver Venice Verona Vienna Vilnius Warsaw Wellington York Zagreb Zurich
""")

ONSETS = _list(
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str "
    "sw t th tr tw v w wh y z"
)
NUCLEI = _list("a e i o u a e i o u ai au ea ee ei ie oa oi oo ou ow y")
CODAS = _list(
    "b ck ct d ff ft g l ld ll lm lt m mp n nd ng nk nt p r rd rk rm rn rt s sh sk ss st t th tch x z"
)


def side(text: str) -> Split:
    """Return the side of the split that a string belongs to: one in eight is for evaluation."""
    return "eval" if hashlib.blake2b(text.lower().encode(), digest_size=4).digest()[0] % 8 == 0 else "train"


class Lexicon:
    """Draw words and values of one side of the split."""

    def __init__(self, rng: random.Random, split: Split = "train", pieces: Sequence[str] = ()) -> None:
        """`pieces` are letter runs of a vocabulary: words made of them let training copy every one."""
        self.pieces = pieces
        self.rng = rng
        self.split: Split = split
        self.nouns = self._of_split(NOUNS + TOPICS)
        self.adjectives = self._of_split(ADJECTIVES)
        self.names = self._of_split(NAMES)
        self.cities = self._of_split(CITIES)
        self._blendable = self._of_split(
            NOUNS + TOPICS + VERBS + ADJECTIVES + [w.lower() for w in NAMES + CITIES]
        )

    def _of_split(self, words: Sequence[str]) -> list[str]:
        return [w for w in dict.fromkeys(words) if side(w) == self.split]

    def narrowed(self, size: int) -> "Lexicon":
        """Return a lexicon of few words, so that tools, parameters and values share words."""
        few = copy(self)
        few.nouns = self._some(self.nouns, size)
        few.adjectives = self._some(self.adjectives, size // 2)
        few.names = self._some(self.names, size)
        few.cities = self._some(self.cities, size)
        few._blendable = self._some(self._blendable, 2 * size)
        return few

    def _some(self, words: list[str], size: int) -> list[str]:
        return self.rng.sample(words, min(size, len(words)))

    def draw(self, make: Callable[[], str], tries: int = 200) -> str:
        """Call `make` until it returns a string of this side of the split."""
        for _ in range(tries):
            text = make()
            if side(text) == self.split:
                return text
        raise RuntimeError("this generator never gives a string on the wanted side of the split")

    def one(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def _syllables(self) -> str:
        out = ""
        for _ in range(self.rng.choice((1, 2, 2, 2, 3))):
            out += self.one(ONSETS) if self.chance(0.85) else ""
            out += self.one(NUCLEI)
            out += self.one(CODAS) if self.chance(0.45) else ""
        return out

    def _blend(self) -> str:
        a, b = self.one(self._blendable), self.one(self._blendable)
        return a[: self.rng.randint(1, len(a))] + b[self.rng.randint(0, len(b) - 1) :]

    def _letters(self) -> str:
        return "".join(self.rng.choices("abcdefghijklmnopqrstuvwxyz", k=self.rng.randint(2, 5)))

    def _joined(self) -> str:
        return "".join(self.rng.choices(self.pieces, k=self.rng.choice((1, 2, 2, 3))))

    def pseudo(self) -> str:
        """Return an invented lower-case word; the three makers together use every piece of the vocabulary."""
        shares = (4, 5, 1, 6 if self.pieces else 0)
        make = self.rng.choices((self._syllables, self._blend, self._letters, self._joined), shares)[0]
        return self.draw(make)

    def word(self, invented: float = 0.5) -> str:
        """Return a lower-case word, real or invented."""
        if self.chance(invented):
            return self.pseudo()
        return self.one(self.nouns if self.chance(0.75) else self.adjectives)

    def words(self, low: int, high: int, invented: float = 0.5) -> list[str]:
        """Return between `low` and `high` distinct words."""
        wanted = self.rng.randint(low, high)
        found: dict[str, None] = {}
        while len(found) < wanted:
            found[self.word(invented)] = None
        return list(found)

    def name(self) -> str:
        return self.one(self.names) if self.chance(0.5) else self.draw(lambda: self.pseudo().capitalize())

    def city(self) -> str:
        return self.one(self.cities) if self.chance(0.6) else self.draw(lambda: self.pseudo().capitalize())

    def number(self, low: int, high: int) -> int:
        return int(self.draw(lambda: str(self.rng.randint(low, high))))

    def digits(self, low: int, high: int) -> str:
        """Return a string of `low` to `high` digits."""
        return self.draw(lambda: "".join(self.rng.choices("0123456789", k=self.rng.randint(low, high))))

    def pair(self, sign: str, low: int, high: int) -> tuple[int, int]:
        """Return two numbers; the pair, written with `sign`, belongs to this side of the split."""
        text = self.draw(lambda: f"{self.rng.randint(low, high)} {sign} {self.rng.randint(low, high)}")
        left, _, right = text.split(" ")
        return int(left), int(right)
