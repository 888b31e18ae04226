//! Keyed noise: a number for each (seed, sample, purpose, token, position), and nothing else.
//!
//! The generator is Threefry2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", SC11). To the bit:
//!
//! * key = `threefry((seed low, seed high), (sample index, purpose))`,
//! * `(x0, x1) = threefry(key, (token id, absolute position))`, `bits = x0 << 32 | x1`,
//! * `v = (bits + 1/2) / 2^64`, and the exponential `E = -ln(1 - v)`, computed from `v` below one
//!   half and from the complement `1 - v = (!bits + 1/2) / 2^64` above it, so that neither rounds to 0
//!   or 1.
//!
//! 64 bits matter: 32 alone never draw a token whose probability is below 1e-11.
//!
//! | purpose | counter | what it is |
//! | --- | --- | --- |
//! | sample | (token id, position of the token) | the target's own draw |
//! | draft | (token id, position of the token) under the key `threefry(key, (row, window))` | a drafter's own draw of the children of a tree row |
//! | accept | (node, window) | the coin of a tree node |
//! | residual, bonus | (token id, position of the token) | the token after a refusal, after a leaf |
//!
//! A window is named by the number of committed tokens it starts from and a row by its number in the
//! window (0 = the last committed token, `i + 1` = node i). A position may be drafted by several
//! windows, and a later window must not know coins and draws that decided an earlier one.

#![expect(
    clippy::inline_always,
    reason = "rounds must be compiled inside each SIMD level"
)]

const PARITY: u32 = 0x1BD1_1BDA;
const TWO_POW_MINUS_64: f64 = 1.0 / 18_446_744_073_709_551_616.0;

/// What a stream of noise is for. Two purposes never share a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// The target's own sample; a coupled drafter races over the same stream on purpose.
    Sample = 0,
    /// A drafter's own draw, independent of the target's.
    Draft = 1,
    /// The coin that accepts or refuses a draft.
    Accept = 2,
    /// The recovered token after a refusal.
    Residual = 3,
    /// The bonus token after a window that was accepted whole.
    Bonus = 4,
}

impl Purpose {
    /// All purposes; each one's number is its index.
    pub const ALL: [Self; 5] = [
        Self::Sample,
        Self::Draft,
        Self::Accept,
        Self::Residual,
        Self::Bonus,
    ];

    /// The purpose of a number, as the specification counts them.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

/// What all noise of a request is keyed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed {
    /// The request's seed.
    pub value: u64,
    /// The index of the sample (`n` > 1).
    pub sample: u32,
}

impl Seed {
    /// The key of one of the request's streams.
    pub fn key(self, purpose: Purpose) -> NoiseKey {
        NoiseKey::new(self.value, self.sample, purpose)
    }
}

/// The key of one stream of noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseKey([u32; 2]);

impl NoiseKey {
    /// The key for a request's seed, the index of the sample (`n` > 1) and a purpose.
    pub fn new(seed: u64, sample: u32, purpose: Purpose) -> Self {
        let seed_words = [seed as u32, (seed >> 32) as u32];
        Self(threefry2x32(seed_words, [sample, purpose as u32]))
    }

    /// The two words of the key, for an implementation on another device.
    pub fn words(self) -> [u32; 2] {
        self.0
    }

    /// The 64 noise bits of a token at an absolute position.
    pub fn bits(self, token: u32, position: u32) -> u64 {
        let [high, low] = threefry2x32(self.0, [token, position]);
        u64::from(high) << 32 | u64::from(low)
    }

    /// The key of a stream of its own, for a row of a window.
    #[must_use]
    pub fn fork(self, row: u32, window: u32) -> Self {
        Self(threefry2x32(self.0, [row, window]))
    }

    /// A uniform number in (0, 1] for a node of a window.
    pub fn uniform(self, node: u32, window: u32) -> f64 {
        (self.bits(node, window) as f64 + 0.5) * TWO_POW_MINUS_64
    }

    /// The upper 32 of [`NoiseKey::bits`]: a screen that runs wide.
    #[inline(always)]
    pub(crate) fn high_bits(self, token: u32, position: u32) -> u32 {
        threefry2x32(self.0, [token, position])[0]
    }

    /// The standard exponential of a token at an absolute position.
    pub fn exponential(self, token: u32, position: u32) -> f64 {
        exponential_from_bits(self.bits(token, position))
    }
}

/// A standard exponential from 64 uniform bits; finite and above zero for all of them.
pub fn exponential_from_bits(bits: u64) -> f64 {
    if bits >> 63 == 0 {
        -libm::log1p(-((bits as f64 + 0.5) * TWO_POW_MINUS_64))
    } else {
        -libm::log((!bits as f64 + 0.5) * TWO_POW_MINUS_64)
    }
}

/// Threefry2x32 with 20 rounds.
#[inline(always)]
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], PARITY ^ key[0] ^ key[1]];
    let state = [
        counter[0].wrapping_add(keys[0]),
        counter[1].wrapping_add(keys[1]),
    ];
    let state = four_rounds(state, [13, 15, 26, 6], [keys[1], keys[2]], 1);
    let state = four_rounds(state, [17, 29, 16, 24], [keys[2], keys[0]], 2);
    let state = four_rounds(state, [13, 15, 26, 6], [keys[0], keys[1]], 3);
    let state = four_rounds(state, [17, 29, 16, 24], [keys[1], keys[2]], 4);
    four_rounds(state, [13, 15, 26, 6], [keys[2], keys[0]], 5)
}

/// Four rounds and the key injection after them.
#[inline(always)]
fn four_rounds(state: [u32; 2], rotations: [u32; 4], keys: [u32; 2], injection: u32) -> [u32; 2] {
    let [mut x0, mut x1] = state;
    for rotation in rotations {
        x0 = x0.wrapping_add(x1);
        x1 = x1.rotate_left(rotation) ^ x0;
    }
    [
        x0.wrapping_add(keys[0]),
        x1.wrapping_add(keys[1]).wrapping_add(injection),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_the_published_generator() {
        let cases = [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
            (
                [0x1319_8a2e, 0x0370_7344],
                [0x243f_6a88, 0x85a3_08d3],
                [0xc492_3a9c, 0x483d_f7a0],
            ),
        ];
        for (key, counter, expected) in cases {
            assert_eq!(threefry2x32(key, counter), expected);
        }
    }

    /// Computed by a separate implementation of the specification above.
    #[test]
    fn bits_are_as_specified() {
        let cases: [(u64, u32, Purpose, u32, u32, u64); 3] = [
            (0x0, 0, Purpose::Sample, 0, 0, 0xf84e_8312_2fef_64f3),
            (0x2a, 0, Purpose::Sample, 1234, 7, 0x1c1f_412c_6c1c_56c1),
            (
                0xdead_beef_cafe_f00d,
                3,
                Purpose::Draft,
                151_935,
                131_071,
                0x13a8_8137_519c_9eaf,
            ),
        ];
        for (seed, sample, purpose, token, position, expected) in cases {
            let key = NoiseKey::new(seed, sample, purpose);
            assert_eq!(key.bits(token, position), expected);
        }
    }

    #[test]
    fn the_smallest_exponentials_differ_in_their_lower_bits() {
        let values: Vec<f64> = (0..1000).map(exponential_from_bits).collect();
        assert!(values.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn exponentials_are_finite_at_both_ends() {
        let smallest = exponential_from_bits(0);
        let largest = exponential_from_bits(u64::MAX);
        assert!(smallest > 0.0 && smallest < 1e-19);
        assert!((largest - 45.05).abs() < 0.01, "{largest}");
        let below = exponential_from_bits((1 << 63) - 1);
        let above = exponential_from_bits(1 << 63);
        assert!((below - above).abs() < 1e-15);
    }

    #[test]
    fn exponentials_grow_with_their_bits() {
        let mut last = 0.0;
        for step in 0..4096_u64 {
            let value = exponential_from_bits(step << 52);
            assert!(value >= last);
            last = value;
        }
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let base = NoiseKey::new(42, 0, Purpose::Sample);
        for other in [
            NoiseKey::new(43, 0, Purpose::Sample),
            NoiseKey::new(42 + (1 << 32), 0, Purpose::Sample),
            NoiseKey::new(42, 1, Purpose::Sample),
            NoiseKey::new(42, 0, Purpose::Accept),
        ] {
            assert_ne!(base, other);
            assert_ne!(base.bits(5, 9), other.bits(5, 9));
        }
        assert_ne!(base.bits(5, 9), base.bits(9, 5));
        assert_eq!(base.bits(5, 9) >> 32, u64::from(base.high_bits(5, 9)));
    }

    #[test]
    fn mean_and_variance_over_tokens_positions_and_seeds() {
        let mean_of = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let streams: [Box<dyn Fn(u32) -> f64>; 3] = [
            Box::new(|i| NoiseKey::new(1, 0, Purpose::Sample).exponential(i, 0)),
            Box::new(|i| NoiseKey::new(1, 0, Purpose::Sample).exponential(0, i)),
            Box::new(|i| NoiseKey::new(u64::from(i), 0, Purpose::Sample).exponential(0, 0)),
        ];
        for stream in streams {
            let values: Vec<f64> = (0..100_000).map(stream).collect();
            let mean = mean_of(&values);
            let squares: Vec<f64> = values.iter().map(|v| (v - mean).powi(2)).collect();
            assert!((mean - 1.0).abs() < 0.02, "{mean}");
            assert!((mean_of(&squares) - 1.0).abs() < 0.06);
            let lagged: Vec<f64> = values
                .windows(2)
                .map(|w| (w[0] - mean) * (w[1] - mean))
                .collect();
            assert!(mean_of(&lagged).abs() < 0.02);
        }
    }
}
