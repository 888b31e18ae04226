use super::*;
use crate::noise::{NoiseKey, Purpose};

const VOCABULARY: usize = 40;

fn window(id: i64, first_row: usize, tree: TokenTree, temperature: f64) -> Window {
    Window {
        request_id: RequestId(id),
        first_row,
        tree,
        position: 10,
        sampling: Sampling {
            temperature,
            ..Sampling::default()
        },
        seed: Seed {
            value: id as u64,
            sample: 0,
        },
        ..Window::default()
    }
}

/// Rows whose largest logits are the given tokens.
fn rows(best: &[usize]) -> Vec<f32> {
    let mut logits = vec![0.0; best.len() * VOCABULARY];
    for (row, &token) in best.iter().enumerate() {
        logits[row * VOCABULARY + token] = 9.0;
    }
    logits
}

#[test]
fn a_window_emits_its_accepted_tokens_and_one_more() {
    let chain = TokenTree::chain(vec![3, 4, 5]).unwrap();
    for (best, accepted) in [([1, 0, 0, 0], 0), ([3, 4, 7, 0], 2), ([3, 4, 5, 6], 3)] {
        let windows = [window(1, 0, chain.clone(), 0.0)];
        let verdicts = verify(7, &windows, Logits::F32(&rows(&best)), 4, 1).unwrap();
        let emitted: Vec<i32> = best[..=accepted]
            .iter()
            .map(|&token| token as i32)
            .collect();
        assert_eq!(verdicts.token_ids, emitted);
        assert_eq!(verdicts.accepted, [accepted as i32]);
        assert_eq!(verdicts.paths, (0..accepted as i32).collect::<Vec<_>>());
        assert_eq!(
            (verdicts.step, verdicts.starts),
            (7, vec![0, accepted as i32 + 1])
        );
    }
}

#[test]
fn a_tree_follows_the_branch_that_is_drawn() {
    let tree = TokenTree::new(vec![3, 4, 5, 5], vec![-1, -1, 0, 1]).unwrap();
    let logits = rows(&[4, 9, 5, 9, 8]);
    let verdicts = verify(0, &[window(1, 0, tree, 0.0)], Logits::F32(&logits), 5, 1).unwrap();
    assert_eq!(verdicts.token_ids, [4, 5, 8]);
    assert_eq!(verdicts.paths, [1, 3]);
}

#[test]
fn a_draft_that_repeats_the_prompt_is_not_accepted_unseen() {
    let chain = TokenTree::chain(vec![1]).unwrap();
    let logits = rows(&[2, 1]);
    let verdicts = verify(0, &[window(1, 0, chain, 0.0)], Logits::F32(&logits), 2, 1).unwrap();
    assert_eq!((verdicts.token_ids, verdicts.accepted), (vec![2], vec![0]));
}

#[test]
fn a_bad_row_is_an_error_of_its_request_alone() {
    let chain = TokenTree::chain(vec![3]).unwrap();
    let windows = [
        window(1, 0, chain.clone(), 0.0),
        window(2, 2, chain.clone(), 0.7),
        window(3, 4, chain, 0.0),
    ];
    let mut logits = rows(&[3, 3, 3, 3, 3, 3]);
    logits[2 * VOCABULARY + 5] = f32::NAN;
    let verdicts = verify(0, &windows, Logits::F32(&logits), 6, 1).unwrap();
    assert_eq!(verdicts.errors[1], Some(Error::NanLogits { position: 10 }));
    assert_eq!((&verdicts.errors[0], &verdicts.errors[2]), (&None, &None));
    assert_eq!(verdicts.starts, [0, 2, 2, 4]);
    assert_eq!(verdicts.accepted, [1, 0, 1]);
}

#[test]
fn rows_off_the_path_are_not_read() {
    let chain = TokenTree::chain(vec![3, 4]).unwrap();
    let mut logits = rows(&[1, 0, 0]);
    logits[2 * VOCABULARY..].fill(f32::NAN);
    let verdicts = verify(0, &[window(1, 0, chain, 0.0)], Logits::F32(&logits), 3, 1).unwrap();
    assert_eq!(verdicts.errors, [None]);
}

#[test]
fn a_request_is_verified_alike_in_any_batch() {
    let logits: Vec<f32> = (0..4 * VOCABULARY)
        .map(|i| ((i * 37) % 23) as f32 / 4.0)
        .collect();
    let alone = |id: i64, row: usize, temperature: f64| {
        let row = &logits[row * VOCABULARY..(row + 1) * VOCABULARY];
        let windows = [window(id, 0, TokenTree::default(), temperature)];
        verify(0, &windows, Logits::F32(row), 1, 1)
            .unwrap()
            .token_ids[0]
    };
    for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
        let mut together = Vec::new();
        let mut batch = Vec::new();
        for (place, &row) in order.iter().enumerate() {
            let temperature = if row % 2 == 0 { 0.0 } else { 0.8 };
            batch.push(window(row as i64, place, TokenTree::default(), temperature));
            together.extend_from_slice(&logits[row * VOCABULARY..(row + 1) * VOCABULARY]);
        }
        let verdicts = verify(0, &batch, Logits::F32(&together), 4, 1).unwrap();
        for (place, &row) in order.iter().enumerate() {
            let temperature = if row % 2 == 0 { 0.0 } else { 0.8 };
            assert_eq!(
                verdicts.token_ids[place],
                alone(row as i64, row, temperature)
            );
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let windows = [window(1, 0, TokenTree::chain(vec![1]).unwrap(), 0.0)];
    let logits = vec![0.0; 2 * VOCABULARY];
    let refused = |logits: &[f32], rows| verify(0, &windows, Logits::F32(logits), rows, 1).is_err();
    assert!(!refused(&logits, 2));
    assert!(refused(&logits, 1));
    assert!(refused(&logits, 3));
    assert!(refused(&logits[1..], 2));
    assert!(refused(&[], 2));
    assert_eq!(verify(0, &[], Logits::F32(&[]), 0, 1), Ok(Verdicts::new(0)));
}

#[test]
fn threads_change_nothing() {
    let vocabulary = 1 << 16;
    let key = NoiseKey::new(5, 0, Purpose::Draft);
    let logits: Vec<f32> = (0..33 * vocabulary as u32)
        .map(|i| (key.bits(i, 0) >> 40) as f32 / 1e6)
        .collect();
    let windows: Vec<Window> = (0..33)
        .map(|id| {
            window(
                id,
                id as usize,
                TokenTree::default(),
                f64::from(id as i32 % 3),
            )
        })
        .collect();
    assert!(useful_threads(&windows, vocabulary) > 1);
    let alone = verify(0, &windows, Logits::F32(&logits), 33, 1).unwrap();
    for threads in [2, 3, 64] {
        assert_eq!(
            verify(0, &windows, Logits::F32(&logits), 33, threads).unwrap(),
            alone
        );
    }
}
