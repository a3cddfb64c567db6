//! The parties: how fast each is, and which images it has.

use fastrand::Rng;
use mesh_node::training::builtin::data::Examples;

use crate::settings::Settings;

const DIGITS: u8 = 10;

/// How digits are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Split {
    /// Each party draws some of the ten.
    Paper,
    /// Two of them are at slow parties only, and at all of these.
    Slow,
}

impl Split {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Split::Paper => "each party draws 5 of the 10 digits",
            Split::Slow => "two digits are at the slow parties only",
        }
    }
}

pub(crate) struct Party {
    pub(crate) speed: f64,
    pub(crate) data: Examples,
}

/// All parties of a seed.
pub(crate) struct Field {
    pub(crate) parties: Vec<Party>,
    /// Digits that only slow parties have.
    pub(crate) rare: Vec<u8>,
}

impl Field {
    pub(crate) fn new(settings: &Settings, split: Split, train: &Examples, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut digits: Vec<u8> = (0..DIGITS).collect();
        random.shuffle(&mut digits);
        let (rare, common) = match split {
            Split::Paper => (Vec::new(), digits),
            Split::Slow => (digits[..2].to_vec(), digits[2..].to_vec()),
        };
        let mut deck = Deck::new(train, &mut random);
        let mut parties = Vec::new();
        let kinds = settings.paper.cpus.iter().zip(&settings.open.speed);
        for ((cpus, speed), count) in kinds.zip(&settings.paper.parties) {
            for n in 0..*count {
                let has_rare = *cpus < settings.open.fast_cpus;
                let mut own = if has_rare { rare.clone() } else { Vec::new() };
                // In turn, so that no digit is nowhere; the rest by chance.
                own.push(common[parties.len() % common.len()]);
                while own.len() < settings.paper.digits {
                    let digit = common[random.usize(..common.len())];
                    if !own.contains(&digit) {
                        own.push(digit);
                    }
                }
                let size = settings.open.sizes[n % settings.open.sizes.len()];
                let data = deck.deal(train, &own, size);
                parties.push(Party { speed: *speed, data });
            }
        }
        Self { parties, rare }
    }
}

/// The images of each digit in an order by chance, dealt to whoever asks; from the beginning again when they are out.
struct Deck {
    digits: Vec<(Vec<usize>, usize)>,
}

impl Deck {
    fn new(train: &Examples, random: &mut Rng) -> Self {
        let mut digits = vec![(Vec::new(), 0); usize::from(DIGITS)];
        for (n, label) in train.labels.iter().enumerate() {
            digits[usize::from(*label)].0.push(n);
        }
        digits.iter_mut().for_each(|(images, _)| random.shuffle(images));
        Self { digits }
    }

    /// So many images of these digits, of each as many.
    fn deal(&mut self, train: &Examples, digits: &[u8], size: usize) -> Examples {
        let mut own = Vec::new();
        for digit in digits {
            let (images, next) = &mut self.digits[usize::from(*digit)];
            own.extend((0..size / digits.len()).map(|n| images[(*next + n) % images.len()]));
            *next += size / digits.len();
        }
        own.sort_unstable();
        train.only(|n| own.binary_search(&n).is_ok())
    }
}
