//! Attention against a naive one in f64, and the bits of a row in every arrangement.
mod common;

use common::{Random, bits, epsilon, round, wide};
use peagle_kernels::{
    AttentionInput, AttentionShape, Bf16, Element, KernelError, Level, attention_at, copy_slots,
    set_num_threads,
};

const BLOCKS: usize = 12;
const POSITIONS: usize = 256;

/// A paged cache and what goes through it.
#[derive(Clone)]
struct Paged<E> {
    level: Level,
    shape: AttentionShape,
    k_cache: Vec<E>,
    v_cache: Vec<E>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    norms: Option<[Vec<E>; 2]>,
    key_start: usize,
}

/// One request's rows in a call.
#[derive(Clone)]
struct Rows<'a, E> {
    qkv: &'a [E],
    context: usize,
    blocks: &'a [i32],
    parents: Vec<i32>,
}

impl<E: Element> Paged<E> {
    fn new(num_heads: usize, num_kv_heads: usize, head_dim: usize, block_size: usize) -> Self {
        let shape = AttentionShape {
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            num_blocks: BLOCKS,
        };
        let size = BLOCKS * num_kv_heads * head_dim * block_size;
        // What was never written must never matter.
        let rubbish = vec![E::from_f32(f32::NAN); size];
        let angle = |i: usize| {
            let (position, i) = (i / (head_dim / 2), i % (head_dim / 2));
            position as f64 * 1e4_f64.powf(-2.0 * i as f64 / head_dim as f64)
        };
        let angles: Vec<f64> = (0..POSITIONS * head_dim / 2).map(angle).collect();
        Self {
            level: Level::best(),
            shape,
            k_cache: rubbish.clone(),
            v_cache: rubbish,
            cos: angles.iter().map(|x| x.cos() as f32).collect(),
            sin: angles.iter().map(|x| x.sin() as f32).collect(),
            norms: None,
            key_start: 0,
        }
    }

    fn width(&self) -> usize {
        (self.shape.num_heads + 2 * self.shape.num_kv_heads) * self.shape.head_dim
    }

    fn run(&mut self, requests: &[Rows<'_, E>]) -> Vec<E> {
        let (size, out_width) = (
            self.shape.block_size,
            self.shape.num_heads * self.shape.head_dim,
        );
        let most = requests.iter().map(|rows| rows.blocks.len()).max().unwrap();
        let (mut qkv, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        let (mut query_start, mut context_lens) = (vec![0], Vec::new());
        let (mut block_tables, mut parents) = (Vec::new(), Vec::new());
        for rows in requests {
            qkv.extend_from_slice(rows.qkv);
            parents.extend_from_slice(&rows.parents);
            for i in 0..rows.parents.len() {
                let slot = rows.context + i;
                slots.push(rows.blocks[slot / size] * size as i32 + (slot % size) as i32);
                positions.push((rows.context + path(&rows.parents, i).len() - 1) as i32);
            }
            query_start.push(positions.len() as i32);
            context_lens.push(rows.context as i32);
            block_tables.extend_from_slice(rows.blocks);
            block_tables.resize(context_lens.len() * most, 0);
        }
        let input = AttentionInput {
            qkv: &qkv,
            positions: &positions,
            slots: &slots,
            query_start: &query_start,
            context_lens: &context_lens,
            block_tables: &block_tables,
            parents: &parents,
            cos: &self.cos,
            sin: &self.sin,
            q_norm: self.norms.as_ref().map(|norms| &norms[0][..]),
            k_norm: self.norms.as_ref().map(|norms| &norms[1][..]),
            eps: 1e-6,
            key_start: self.key_start,
            scale: 0.3,
        };
        let mut out = vec![E::default(); slots.len() * out_width];
        let (k_cache, v_cache) = (&mut self.k_cache, &mut self.v_cache);
        attention_at(self.level, self.shape, &input, k_cache, v_cache, &mut out).unwrap();
        out
    }

    /// One head, normalised and rotated as Hugging Face does, rounded after each operation.
    fn rotated(&self, x: &[f64], norm: Option<&[E]>, position: usize) -> Vec<f64> {
        let half = x.len() / 2;
        let mut x = x.to_vec();
        if let Some(norm) = norm {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            for (x, norm) in x.iter_mut().zip(wide(norm)) {
                *x = round::<E>(round::<E>(*x / (mean + 1e-6).sqrt()) * norm);
            }
        }
        let turn = |i: usize, sign: f64| {
            let at = position * half + i % half;
            let [cos, sin] = [&self.cos, &self.sin].map(|t| round::<E>(f64::from(t[at])));
            let other = x[(i + half) % x.len()];
            round::<E>(round::<E>(x[i] * cos) + round::<E>(sign * other * sin))
        };
        (0..x.len())
            .map(|i| turn(i, if i < half { -1.0 } else { 1.0 }))
            .collect()
    }

    /// Attention of the last of `rows` (of `qkv`) to all of them, which are its path.
    fn expected(&self, qkv: &[E], rows: &[usize]) -> Vec<f64> {
        let AttentionShape {
            num_heads,
            num_kv_heads,
            head_dim: dim,
            ..
        } = self.shape;
        let qkv = wide(qkv);
        let head = |row: usize, head: usize| &qkv[rows[row] * self.width() + head * dim..][..dim];
        let norms = self.norms.as_ref();
        let last = rows.len() - 1;
        let mut out = Vec::new();
        for q_head in 0..num_heads {
            let kv_head = q_head / (num_heads / num_kv_heads);
            let q = self.rotated(head(last, q_head), norms.map(|n| &n[0][..]), last);
            let start = self.key_start.min(last);
            let weights: Vec<f64> = (start..=last)
                .map(|p| {
                    let k = head(p, num_heads + kv_head);
                    let k = self.rotated(k, norms.map(|n| &n[1][..]), p);
                    (0.3 * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()).exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..dim).map(|d| {
                let value = |p: usize| head(p, num_heads + num_kv_heads + kv_head)[d];
                weights
                    .iter()
                    .zip(start..)
                    .map(|(w, p)| w * value(p))
                    .sum::<f64>()
                    / sum
            }));
        }
        out
    }
}

fn chain(length: usize) -> Vec<i32> {
    (-1..length as i32 - 1).collect()
}

/// The rows from a root to `row`.
fn path(parents: &[i32], row: usize) -> Vec<usize> {
    let mut path = vec![row];
    while let Ok(parent) = usize::try_from(parents[path[path.len() - 1]]) {
        path.push(parent);
    }
    path.reverse();
    path
}

fn matches_naive<E: Element>() {
    let mut random = Random::new(1);
    for level in Level::available() {
        for (heads, kv_heads) in [(3, 1), (4, 4), (6, 2), (7, 1)] {
            for dim in [8, 16, 24, 64, 80, 128] {
                let block = if dim == 24 { 32 } else { 16 };
                let mut paged = Paged::<E>::new(heads, kv_heads, dim, block);
                paged.level = level;
                paged.key_start = random.below(2);
                if random.below(2) == 0 {
                    paged.norms = Some([random.numbers(dim), random.numbers(dim)]);
                }
                let qkv: Vec<E> = random.numbers(35 * paged.width());
                let out = paged.run(&[Rows {
                    qkv: &qkv,
                    context: 0,
                    blocks: &[5, 0, 9],
                    parents: chain(35),
                }]);
                for row in [0, 1, 2, 15, 16, 17, 34] {
                    let expected = paged.expected(&qkv, &(0..=row).collect::<Vec<_>>());
                    let got = &out[row * heads * dim..][..heads * dim];
                    // Values are below 1, so errors of the probabilities add up to little. A
                    // rounded query or key may fall on the other side of a tie.
                    common::assert_close(got, &expected, |i| {
                        epsilon::<E>()
                            * (expected[i].abs() + if paged.norms.is_some() { 8.0 } else { 0.1 })
                            + 4e-6
                    });
                }
            }
        }
    }
}

#[test]
fn matches_naive_f32() {
    matches_naive::<f32>();
}

#[test]
fn matches_naive_bf16() {
    matches_naive::<Bf16>();
}

/// Rows of random trees, at any level, are the same rows of chains in other blocks.
fn trees_are_chains<E: Element>() {
    let mut random = Random::new(2);
    for level in Level::available() {
        for round in 0..12 {
            set_num_threads(1 + round % 3);
            let (context, nodes) = (random.below(40), 1 + random.below(24));
            let context = if round == 0 { 0 } else { context };
            let mut paged = Paged::<E>::new(6, 2, 40, 16 + 16 * (round % 2));
            paged.level = level;
            paged.key_start = round % 2;
            let parent = |i: usize| random.below(i + 1) as i32 - 1;
            let parents: Vec<i32> = (0..nodes).map(parent).collect();
            // Path positions below `key_start` are keys of nobody else, so give each one slot.
            let context = context.max(paged.key_start);
            let mut other = paged.clone();
            let qkv: Vec<E> = random.numbers((context + nodes) * paged.width());
            let (before, window) = qkv.split_at(context * paged.width());
            let blocks = [3, 1, 8, 11];
            if context > 0 {
                paged.run(&[Rows {
                    qkv: before,
                    context: 0,
                    blocks: &blocks,
                    parents: chain(context),
                }]);
            }
            let out = paged.run(&[Rows {
                qkv: window,
                context,
                blocks: &blocks,
                parents: parents.clone(),
            }]);
            for (row, out) in out.chunks(6 * 40).enumerate() {
                let above = path(&parents, row);
                let rows: Vec<usize> = (0..context)
                    .chain(above.iter().map(|r| context + r))
                    .collect();
                let alone: Vec<E> = rows
                    .iter()
                    .flat_map(|row| &qkv[row * paged.width()..][..paged.width()])
                    .copied()
                    .collect();
                let parents = chain(rows.len());
                let alone = other.run(&[Rows {
                    qkv: &alone,
                    context: 0,
                    blocks: &[2, 4, 7, 5],
                    parents,
                }]);
                assert!(
                    bits(out) == bits(&alone[alone.len() - 240..]),
                    "row {row} of {round}"
                );
            }
        }
    }
}

#[test]
fn trees_are_chains_f32() {
    trees_are_chains::<f32>();
}

#[test]
fn trees_are_chains_bf16() {
    trees_are_chains::<Bf16>();
}

/// Chunks of any size, with neighbours, in scattered blocks of another size, on any threads.
fn arrangement_does_not_matter<E: Element>() {
    const LENGTH: usize = 70;
    let mut random = Random::new(3);
    for level in Level::available() {
        let mut plain = Paged::<E>::new(6, 3, 32, 16);
        plain.level = level;
        let width = plain.width();
        let qkv: Vec<E> = random.numbers(LENGTH * width);
        let whole = plain.run(&[Rows {
            qkv: &qkv,
            context: 0,
            blocks: &[0, 1, 2, 3, 4],
            parents: chain(LENGTH),
        }]);
        for (threads, chunk, block) in [(1, 1, 16), (2, 5, 32), (3, 16, 16), (2, 33, 48)] {
            set_num_threads(threads);
            let mut paged = Paged::<E>::new(6, 3, 32, block);
            paged.level = level;
            let order: Vec<i32> = random.shuffled(BLOCKS).iter().map(|&b| b as i32).collect();
            let (mine, theirs) = order.split_at(6);
            let noise: Vec<E> = random.numbers(LENGTH * width);
            let (mut parts, mut start) = (Vec::new(), 0);
            while start < LENGTH {
                let size = chunk.min(LENGTH - start);
                let range = start * width..(start + size) * width;
                let rows = [(&noise, theirs), (&qkv, mine)].map(|(qkv, blocks)| Rows {
                    qkv: &qkv[range.clone()],
                    context: start,
                    blocks,
                    parents: chain(size),
                });
                let out = paged.run(&rows);
                parts.extend_from_slice(&out[size * 6 * 32..]);
                start += size;
            }
            assert!(bits(&parts) == bits(&whole), "chunks of {chunk}");
        }
    }
}

#[test]
fn arrangement_does_not_matter_f32() {
    arrangement_does_not_matter::<f32>();
}

#[test]
fn arrangement_does_not_matter_bf16() {
    arrangement_does_not_matter::<Bf16>();
}

/// Queries, keys and values of bfloat16 numbers are rounded exactly as Hugging Face does:
/// a row that attends to itself alone gives back its value.
#[test]
fn a_first_row_gives_its_value() {
    let mut paged = Paged::<Bf16>::new(4, 2, 16, 16);
    let qkv: Vec<Bf16> = Random::new(4).numbers(paged.width());
    let out = paged.run(&[Rows {
        qkv: &qkv,
        context: 0,
        blocks: &[6],
        parents: chain(1),
    }]);
    for (head, out) in out.chunks(16).enumerate() {
        assert_eq!(bits(out), bits(&qkv[(4 + 2 + head / 2) * 16..][..16]));
    }
}

/// The cache holds keys transposed inside a block, and values by slot.
#[test]
fn cache_layout() {
    let mut paged = Paged::<f32>::new(2, 2, 16, 32);
    let width = paged.width();
    let qkv: Vec<f32> = Random::new(5).numbers(3 * width);
    paged.run(&[Rows {
        qkv: &qkv,
        context: 0,
        blocks: &[7],
        parents: chain(3),
    }]);
    for row in 0..3 {
        for head in 0..2 {
            let block = (7 * 2 + head) * 16 * 32;
            let value = &qkv[row * width + (2 + 2 + head) * 16..][..16];
            assert_eq!(&paged.v_cache[block + row * 16..][..16], value);
            let key = paged.rotated(
                &wide(&qkv[row * width + (2 + head) * 16..][..16]),
                None,
                row,
            );
            for (d, expected) in key.iter().enumerate() {
                let got = paged.k_cache[block + d * 32 + row];
                assert!((f64::from(got) - expected).abs() < 1e-6);
            }
        }
    }
    let written = paged.k_cache.iter().filter(|x| !x.is_nan()).count();
    assert_eq!(written, 3 * 2 * 16);
}

#[test]
fn copies_are_made_in_order() {
    let mut paged = Paged::<Bf16>::new(2, 2, 16, 16);
    let qkv: Vec<Bf16> = Random::new(6).numbers(20 * paged.width());
    let rows = Rows {
        qkv: &qkv[..19 * paged.width()],
        context: 0,
        blocks: &[2, 9],
        parents: chain(19),
    };
    paged.run(&[rows]);
    let last = |paged: &mut Paged<Bf16>, blocks: &[i32]| {
        let qkv = &qkv[19 * paged.width()..];
        bits(&paged.run(&[Rows {
            qkv,
            context: 19,
            blocks,
            parents: vec![-1],
        }]))
    };
    let expected = last(&mut paged, &[2, 9]);
    // Slots of block 9 go to block 0; slot 32 first to 5 * 16, then from there to 16.
    let src = [144, 145, 146, 32, 80];
    let dst = [0, 1, 2, 80, 16];
    let shape = paged.shape;
    copy_slots(shape, &mut paged.k_cache, &mut paged.v_cache, &src, &dst).unwrap();
    for slot in 33..48 {
        copy_slots(
            shape,
            &mut paged.k_cache,
            &mut paged.v_cache,
            &[slot],
            &[slot - 16],
        )
        .unwrap();
    }
    assert_eq!(last(&mut paged, &[1, 0]), expected);
}

#[test]
fn wrong_arguments_are_refused() {
    let mut paged = Paged::<f32>::new(2, 1, 16, 16);
    let qkv = vec![0.0; 2 * paged.width()];
    let (cos, sin) = (paged.cos.clone(), paged.sin.clone());
    let good = AttentionInput {
        qkv: &qkv,
        positions: &[0, 1],
        slots: &[16, 17],
        query_start: &[0, 2],
        context_lens: &[0],
        block_tables: &[1],
        parents: &[-1, 0],
        cos: &cos,
        sin: &sin,
        q_norm: None,
        k_norm: None,
        eps: 0.0,
        key_start: 0,
        scale: 1.0,
    };
    let mut refused = |shape: AttentionShape, input: AttentionInput<'_, f32>| {
        let (k_cache, v_cache) = (&mut paged.k_cache, &mut paged.v_cache);
        let mut out = vec![0.0; 2 * 32];
        attention_at(Level::best(), shape, &input, k_cache, v_cache, &mut out)
            .map_or_else(|error| error.to_string(), |()| "accepted".to_owned())
    };
    let shape = AttentionShape {
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 16,
        block_size: 16,
        num_blocks: BLOCKS,
    };
    macro_rules! cases {
        ($({ $($field:ident: $value:expr),* } => $message:literal)*) => {
            $(assert_eq!(refused(shape, AttentionInput { $($field: $value,)* ..good }), $message);)*
        };
    }
    cases! {
        {} => "accepted"
        { slots: &[16, -1] } => "slots[1] is -1, but the block table says 17"
        { slots: &[16, 18] } => "slots[1] is 18, but the block table says 17"
        { parents: &[-1, 1] } => "parents[1] is 1, outside -1..1"
        { parents: &[-2, 0] } => "parents[0] is -2, outside -1..0"
        { positions: &[0, 256] } => "positions[1] is 256, outside 0..256"
        { block_tables: &[12] } => "block_tables[0] is 12, outside 0..12"
        { block_tables: &[] } => "a row of block_tables has 0 elements, not 1"
        { context_lens: &[15] } => "a row of block_tables has 1 elements, not 2"
        { context_lens: &[-1] } => "context_lens[0] is -1, outside 0..2147483647"
        { query_start: &[0, 1] } => "query_start[1] is 1, outside 2..3"
        { query_start: &[1, 2] } => "query_start[0] is 1, outside 0..1"
        { parents: &[-1] } => "parents has 1 elements, not 2"
        { qkv: &qkv[1..] } => "qkv has 127 elements, not 128"
        { q_norm: Some(&[1.0; 8]) } => "q_norm has 8 elements, not 16"
    }
    let odd = |change: fn(&mut AttentionShape)| {
        let mut odd = shape;
        change(&mut odd);
        odd
    };
    let shapes: [(AttentionShape, &str); 4] = [
        (
            odd(|s| s.block_size = 8),
            "block_size is 8, but must be a multiple of 16",
        ),
        (
            odd(|s| s.head_dim = 12),
            "head_dim is 12, but must be a multiple of 8 up to 256",
        ),
        (
            odd(|s| s.num_kv_heads = 0),
            "num_kv_heads is 0, but must be at least 1",
        ),
        (
            odd(|s| s.num_heads = 0),
            "num_heads is 0, but must be a multiple of num_kv_heads",
        ),
    ];
    for (shape, message) in shapes {
        assert_eq!(refused(shape, AttentionInput { ..good }), message);
    }
    let outside = copy_slots(shape, &mut paged.k_cache, &mut paged.v_cache, &[192], &[0]);
    assert!(matches!(
        outside,
        Err(KernelError::Index {
            what: "src",
            got: 192,
            ..
        })
    ));
}
