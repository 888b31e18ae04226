//! The noise specification: its vectors, and streams that never meet.

use std::collections::HashSet;

use peagle_core::noise::{exponential_from_bits, threefry2x32};
use peagle_core::{NoiseKey, Purpose};
use serde_json::Value;

const VECTORS: &str = include_str!("../../../python/peagle/check/noise_vectors.json");
/// Seeds 0..SEEDS are compared with one another.
const SEEDS: u64 = 131_072;

fn vectors(table: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(VECTORS).unwrap();
    all[table].as_array().unwrap().clone()
}

fn hex(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

#[test]
fn the_generator_gives_its_vectors() {
    for vector in vectors("generator") {
        let words = |name: &str| [0, 1].map(|word: usize| hex(&vector[name][word]) as u32);
        let result = threefry2x32(words("key"), words("counter"));
        assert_eq!(result, words("result"), "{vector}");
    }
}

#[test]
fn the_streams_give_their_vectors() {
    for vector in vectors("streams") {
        let purpose = Purpose::from_number(number(&vector["purpose"])).unwrap();
        let key = NoiseKey::new(hex(&vector["seed"]), number(&vector["sample"]), purpose);
        let bits = key.bits(number(&vector["token_id"]), number(&vector["position"]));
        assert_eq!(bits, hex(&vector["bits"]), "{vector}");
        let expected = vector["exponential"].as_f64().unwrap();
        let got = exponential_from_bits(bits);
        assert!((got / expected - 1.0).abs() < 1e-15, "{got} {expected}");
    }
}

#[test]
fn numbers_and_purposes_agree() {
    for (number, purpose) in Purpose::ALL.into_iter().enumerate() {
        assert_eq!(Purpose::from_number(number as u32), Some(purpose));
        assert_eq!(purpose as usize, number);
    }
    assert_eq!(Purpose::from_number(5), None);
}

/// Every seed, with every purpose, for adjacent tokens and positions: no two bits are equal. (Of
/// 2.6 million random 64-bit numbers two are equal with probability 2e-7.)
#[test]
fn streams_of_131072_seeds_and_all_purposes_never_collide() {
    let mut seen = HashSet::with_capacity(SEEDS as usize * 20);
    for seed in 0..SEEDS {
        for purpose in Purpose::ALL {
            let key = NoiseKey::new(seed, 0, purpose);
            for (token, position) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                assert!(seen.insert(key.bits(token, position)), "{seed} {purpose:?}");
            }
        }
    }
}

/// The exponentials of a stream over all seeds.
fn stream(purpose: Purpose, token: u32, position: u32) -> Vec<f64> {
    let draws = (0..SEEDS).map(|seed| {
        let key = NoiseKey::new(seed, 0, purpose);
        key.exponential(token, position) - 1.0
    });
    draws.collect()
}

/// Correlation over the seeds, in standard deviations of independent streams.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
    dot / (a.len() as f64).sqrt()
}

/// Pairs of purposes, of adjacent tokens, of adjacent positions and of adjacent seeds do not
/// correlate; a stream and itself do.
#[test]
fn streams_are_independent_over_seeds() {
    let mut streams: Vec<Vec<f64>> = Vec::new();
    for purpose in Purpose::ALL {
        streams.push(stream(purpose, 7, 3));
    }
    streams.push(stream(Purpose::Sample, 8, 3));
    streams.push(stream(Purpose::Sample, 7, 4));
    streams.push(stream(Purpose::Sample, 3, 7));
    for (index, a) in streams.iter().enumerate() {
        for b in &streams[..index] {
            assert!(correlation(a, b).abs() < 5.0);
        }
        assert!(correlation(&a[1..], &a[..a.len() - 1]).abs() < 5.0);
        assert!(correlation(a, a) > 300.0);
    }
}

/// Each of the 64 bits is one half of the time, over seeds and over tokens.
#[test]
fn every_bit_is_fair() {
    let key = NoiseKey::new(1, 0, Purpose::Sample);
    let by_seed = |i: u64| NoiseKey::new(i, 0, Purpose::Sample).bits(0, 0);
    let by_token = |i: u64| key.bits(i as u32, 0);
    for source in [&by_seed as &dyn Fn(u64) -> u64, &by_token] {
        let mut ones = [0.0_f64; 64];
        for index in 0..SEEDS {
            let bits = source(index);
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += (bits >> bit & 1) as f64;
            }
        }
        let half = SEEDS as f64 / 2.0;
        for count in ones {
            assert!((count - half).abs() / (half / 2.0).sqrt() < 5.0, "{count}");
        }
    }
}
