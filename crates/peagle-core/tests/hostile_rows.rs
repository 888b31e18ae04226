//! Whatever stands in rows, trees and draft laws: `verify` does not panic, and says what is wrong.

use peagle_core::simd::{Bf16, F16, Format};
use peagle_core::verify::verify;
use peagle_core::{
    DraftProbs, Error, Logits, Method, RequestId, Sampling, Seed, TokenTree, Window,
};
use proptest::prelude::*;

const VOCABULARY: usize = 9;

fn hostile_number() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -30.0_f32..30.0,
        1 => prop::sample::select(vec![
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            0.0,
            -0.0,
        ]),
    ]
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        6 => prop::collection::vec(-30.0_f32..30.0, VOCABULARY),
        3 => prop::collection::vec(hostile_number(), VOCABULARY),
        1 => Just(vec![f32::NEG_INFINITY; VOCABULARY]),
    ]
}

/// A law over draft ids, most often a usable one.
fn law(width: usize) -> impl Strategy<Value = Vec<f32>> {
    let usable = prop::collection::vec(0.01_f32..1.0, width).prop_map(|weights| {
        let total: f32 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    });
    prop_oneof![8 => usable, 1 => prop::collection::vec(hostile_number(), width)]
}

prop_compose! {
    fn draft_probs()(
        ids in prop_oneof![
            4 => Just((0..VOCABULARY as i32).collect::<Vec<_>>()),
            1 => prop::collection::vec(-2..VOCABULARY as i32 + 2, 0..VOCABULARY),
        ],
        depths in 0_usize..6,
    )(
        laws in prop::collection::vec(law(ids.len()), depths),
        ids in Just(ids),
    ) -> DraftProbs {
        let probs = laws.concat();
        let range = 0..probs.len();
        DraftProbs::new(probs.into(), range, ids.into()).unwrap()
    }
}

prop_compose! {
    /// Trees with any tokens and parents, as far as a tree can be made of them.
    fn tree()(
        tokens in prop::collection::vec(-1..VOCABULARY as i32 + 2, 0..6),
        parents in prop::collection::vec(-2_i32..6, 0..6),
        is_chain in any::<bool>(),
    ) -> TokenTree {
        let tokens: Vec<i32> = tokens;
        let tree = if is_chain {
            TokenTree::chain(tokens)
        } else {
            TokenTree::new(tokens, parents)
        };
        tree.unwrap_or_default()
    }
}

prop_compose! {
    fn window()(
        tree in tree(),
        method in prop::sample::select(vec![Method::Coupled, Method::Rejection, Method::Block]),
        draft_probs in prop::option::of(draft_probs()),
        temperature in prop::sample::select(vec![0.0, 1e-300, 0.3, 1.0, 1e30]),
        top_k in 0_u32..12,
        top_p in 0.01_f64..=1.0,
        min_p in 0.0_f64..=1.0,
        seed in any::<u64>(),
        position in 0..1_000_000_i32,
    ) -> Window {
        Window {
            tree,
            method,
            draft_probs,
            position,
            sampling: Sampling { temperature, top_k, top_p, min_p },
            seed: Seed { value: seed, sample: 0 },
            ..Window::default()
        }
    }
}

/// Windows one after another, and a row for each node and one more.
fn batch() -> impl Strategy<Value = (Vec<Window>, Vec<f32>)> {
    prop::collection::vec(window(), 0..4).prop_flat_map(|mut windows| {
        let mut rows = 0;
        for (window, id) in windows.iter_mut().zip(0..) {
            window.request_id = RequestId(id);
            window.first_row = rows;
            rows += 1 + window.tree.len();
        }
        let rows = prop::collection::vec(row(), rows);
        (Just(windows), rows.prop_map(|rows| rows.concat()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn hostile_rows_and_laws_end_their_own_request_alone((windows, logits) in batch()) {
        let rows = windows.iter().map(|window| 1 + window.tree.len()).sum();
        let found = verify(0, &windows, Logits::F32(&logits), rows, 1).unwrap();
        for (index, window) in windows.iter().enumerate() {
            let bounds = found.starts[index] as usize..found.starts[index + 1] as usize;
            let tokens = &found.token_ids[bounds];
            if found.errors[index].is_some() {
                prop_assert!(tokens.is_empty());
                continue;
            }
            prop_assert_eq!(tokens.len(), found.accepted[index] as usize + 1);
            prop_assert!(found.accepted[index] as usize <= window.tree.len());
            prop_assert!(tokens.iter().all(|&token| (token as usize) < VOCABULARY));
            let alone = Window { first_row: 0, ..window.clone() };
            let rows = window.first_row..window.first_row + 1 + window.tree.len();
            let own = &logits[rows.start * VOCABULARY..rows.end * VOCABULARY];
            let alone = verify(0, &[alone], Logits::F32(own), rows.len(), 1).unwrap();
            prop_assert_eq!(&alone.token_ids, tokens);
        }
    }

    #[test]
    fn wrong_lengths_are_refused(
        (windows, logits) in batch(),
        rows in 0_usize..12,
        cut in 0_usize..20,
        shift in 0_usize..3,
    ) {
        let expected: usize = windows.iter().map(|window| 1 + window.tree.len()).sum();
        let values = &logits[..logits.len().saturating_sub(cut)];
        let mut windows = windows;
        for window in &mut windows {
            window.first_row += shift;
        }
        let found = verify(0, &windows, Logits::F32(values), rows, 1);
        let fits = rows == expected && (shift == 0 || windows.is_empty());
        let fits = fits && (rows == 0 || (!values.is_empty() && values.len() % rows == 0));
        match found {
            Ok(_) => prop_assert!(fits),
            Err(error) => {
                prop_assert!(!fits);
                let is_shape = matches!(error, Error::ShapeMismatch { .. });
                prop_assert!(is_shape, "{}", error);
            }
        }
    }

    /// Any 16 bits are a number, NaN or infinity; the outcome is that of the same row in f32.
    #[test]
    fn rows_of_any_bits_are_read_as_what_they_say(
        (windows, seen) in batch(),
        bits in prop::collection::vec(any::<u16>(), 24 * VOCABULARY),
        is_bf16 in any::<bool>(),
    ) {
        let bits = &bits[..seen.len()];
        let rows = seen.len() / VOCABULARY;
        let widen = if is_bf16 { Bf16::widen } else { F16::widen };
        let wide: Vec<f32> = bits.iter().map(|&bits| widen(bits)).collect();
        let logits = if is_bf16 { Logits::Bf16(bits) } else { Logits::F16(bits) };
        let found = verify(0, &windows, logits, rows, 1).unwrap();
        let expected = verify(0, &windows, Logits::F32(&wide), rows, 1).unwrap();
        prop_assert_eq!(&found.token_ids, &expected.token_ids);
        for (one, other) in found.errors.iter().zip(&expected.errors) {
            prop_assert_eq!(one.is_some(), other.is_some());
        }
    }

    #[test]
    fn what_is_not_a_tree_is_refused(
        tokens in prop::collection::vec(-1_i32..4, 0..6),
        parents in prop::collection::vec(-2_i32..6, 0..6),
    ) {
        let same_length = tokens.len() == parents.len();
        let nodes: Vec<(i32, i32)> = parents.iter().copied().zip(tokens.iter().copied()).collect();
        let sorted = (0..).zip(&nodes).all(|(node, &(parent, _))| (-1..node).contains(&parent));
        let known = tokens.iter().all(|&token| token >= 0);
        let twins = (1..nodes.len()).any(|node| nodes[..node].contains(&nodes[node]));
        let found = TokenTree::new(tokens, parents);
        prop_assert_eq!(found.is_ok(), same_length && sorted && known && !twins);
        if let Err(error) = found {
            let is_typed =
                matches!(error, Error::InvalidTree { .. } | Error::ShapeMismatch { .. });
            prop_assert!(is_typed, "{}", error);
        }
    }
}
