//! The x86-64 levels: AVX2 with FMA, AVX-512, AVX-512 with bfloat16 dot products.
//!
//! A token of this file exists only on a CPU that has the features of its level ([`run`] is
//! reached only with a kind from [`available`]): that is the whole safety argument here.
use std::arch::x86_64::{
    __m256, __m256i, __m512, __m512bh, __m512i, _CMP_NLT_UQ, _MM_HINT_T1, _mm_prefetch,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_div_ps, _mm256_fmadd_ps,
    _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_slli_epi32, _mm256_sub_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512,
    _mm512_castps_si512, _mm512_castsi256_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cvtepu16_epi32, _mm512_div_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_inserti64x4,
    _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_permutexvar_epi16,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_sub_ps,
};
use std::mem::transmute;

use super::{Dispatch, Kind, Simd, Work};

/// The levels of this CPU, slowest first.
pub(super) fn available() -> Vec<Kind> {
    let mut kinds = Vec::new();
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        kinds.push(Kind::Avx2);
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            kinds.push(Kind::Avx512);
            if is_x86_feature_detected!("avx512bf16") {
                kinds.push(Kind::Avx512Bf16);
            }
        }
    }
    kinds
}

/// Run `work` with the token of `kind`, one of [`available`].
pub(super) fn run(kind: Kind, work: impl Dispatch) {
    match kind {
        Kind::Baseline => unreachable!("not an x86 level"),
        Kind::Avx2 => work.run(Avx2(())),
        Kind::Avx512 => work.run(Avx512(())),
        Kind::Avx512Bf16 => work.run(Avx512Bf16(())),
    }
}

/// `Simd::enter` for a level with these features.
macro_rules! enter {
    ($features:literal) => {
        #[inline]
        fn enter<W: Work<Self>>(self, work: W) -> W::Output {
            #[target_feature(enable = $features)]
            fn inside<S: Simd, W: Work<S>>(s: S, work: W) -> W::Output {
                work.run(s)
            }
            // SAFETY: the token proves that the CPU has the features.
            unsafe { inside(self, work) }
        }
    };
}

#[derive(Clone, Copy)]
pub(super) struct Avx2(());

#[derive(Clone, Copy)]
pub(super) struct Avx512(());

#[derive(Clone, Copy)]
pub(super) struct Avx512Bf16(());

/// A hint only: the address may lie outside of any allocation.
#[inline(always)]
fn prefetch<T>(from: &T, bytes: usize) {
    let address = std::ptr::from_ref(from).cast::<i8>().wrapping_add(bytes);
    // SAFETY: a prefetch never faults and reads nothing the program can see.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address) }
}

/// The operations that both AVX-512 levels share.
macro_rules! lanes512 {
    () => {
        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        fn load(self, from: &[f32; 16]) -> __m512 {
            // SAFETY: both sides are 64 bytes of plain data.
            unsafe { transmute::<[f32; 16], __m512>(*from) }
        }

        #[inline(always)]
        fn load_bf16(self, from: &[u16; 16]) -> __m512 {
            // SAFETY: the token proves AVX-512F; 32 bytes of plain data.
            unsafe {
                let bits = _mm512_cvtepu16_epi32(transmute::<[u16; 16], __m256i>(*from));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }

        #[inline(always)]
        fn store(self, v: __m512, to: &mut [f32; 16]) {
            // SAFETY: both sides are 64 bytes of plain data.
            *to = unsafe { transmute::<__m512, [f32; 16]>(v) };
        }

        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_sub_ps(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        fn div(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_div_ps(a, b) }
        }

        #[inline(always)]
        fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_max_ps(a, b) }
        }

        #[inline(always)]
        fn min(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_min_ps(a, b) }
        }

        #[inline(always)]
        fn keep_from(self, x: __m512, limit: __m512, v: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), v) }
        }

        #[inline(always)]
        fn scale_pow2(self, v: __m512, shifted: __m512) -> __m512 {
            // SAFETY: the token proves AVX-512F.
            unsafe {
                let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
                _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), power))
            }
        }

        #[inline(always)]
        fn prefetch<T>(self, from: &T, bytes: usize) {
            prefetch(from, bytes);
        }
    };
}

/// Both bfloat16 halves of a pair as `f32`.
#[inline(always)]
fn widen_pair(low: u16, high: u16) -> [f32; 2] {
    [low, high].map(|bits| f32::from_bits(u32::from(bits) << 16))
}

impl Simd for Avx512 {
    type V = __m512;
    type Weights = [__m512; 2];
    type Pair = [f32; 2];
    const MAX_ROWS: usize = 24;

    enter!("avx2,fma,avx512f,avx512bw");
    lanes512!();

    #[inline(always)]
    fn pair(self, low: u16, high: u16) -> [f32; 2] {
        widen_pair(low, high)
    }

    #[inline(always)]
    fn load_pairs(self, from: &[u32; 16]) -> Self::Weights {
        // SAFETY: the token proves AVX-512F; 64 bytes of plain data.
        unsafe {
            let pairs = transmute::<[u32; 16], __m512i>(*from);
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(_mm512_and_si512(pairs, high)),
            ]
        }
    }

    #[inline(always)]
    fn join_pairs(self, low: &[u16; 16], high: &[u16; 16]) -> Self::Weights {
        [self.load_bf16(low), self.load_bf16(high)]
    }

    #[inline(always)]
    fn dot(self, x: [f32; 2], w: Self::Weights, acc: __m512) -> __m512 {
        let acc = self.mul_add(self.splat(x[0]), w[0], acc);
        self.mul_add(self.splat(x[1]), w[1], acc)
    }
}

/// The places i and 16 + i, a 16-bit half each.
const INTERLEAVE: [u32; 16] = {
    let mut places = [0; 16];
    let mut i = 0;
    while i < 16 {
        places[i] = i as u32 | (16 + i as u32) << 16;
        i += 1;
    }
    places
};

impl Simd for Avx512Bf16 {
    type V = __m512;
    type Weights = __m512bh;
    type Pair = u32;
    const MAX_ROWS: usize = 28;

    enter!("avx2,fma,avx512f,avx512bw,avx512bf16");
    lanes512!();

    #[inline(always)]
    fn pair(self, low: u16, high: u16) -> u32 {
        u32::from(low) | u32::from(high) << 16
    }

    #[inline(always)]
    fn load_pairs(self, from: &[u32; 16]) -> __m512bh {
        // SAFETY: both sides are 64 bytes of plain data.
        unsafe { transmute::<[u32; 16], __m512bh>(*from) }
    }

    #[inline(always)]
    fn join_pairs(self, low: &[u16; 16], high: &[u16; 16]) -> __m512bh {
        // SAFETY: the token proves AVX-512F and AVX-512BW; 32 bytes of plain data each.
        unsafe {
            let low = transmute::<[u16; 16], __m256i>(*low);
            let high = transmute::<[u16; 16], __m256i>(*high);
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            // Number i of the first half, then number i of the second.
            let order = transmute::<[u32; 16], __m512i>(INTERLEAVE);
            transmute::<__m512i, __m512bh>(_mm512_permutexvar_epi16(order, both))
        }
    }

    #[inline(always)]
    fn dot(self, x: u32, w: __m512bh, acc: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F and AVX512_BF16.
        unsafe {
            let x = transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32));
            _mm512_dpbf16_ps(acc, w, x)
        }
    }
}

/// Apply an eight-lane operation to both halves.
#[inline(always)]
fn halves(a: [__m256; 2], b: [__m256; 2], f: impl Fn(__m256, __m256) -> __m256) -> [__m256; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

impl Simd for Avx2 {
    type V = [__m256; 2];
    type Weights = [[__m256; 2]; 2];
    type Pair = [f32; 2];
    const MAX_ROWS: usize = 4;

    enter!("avx2,fma");

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves AVX2.
        [unsafe { _mm256_set1_ps(x) }; 2]
    }

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::V {
        // SAFETY: both sides are 64 bytes of plain data.
        unsafe { transmute::<[f32; 16], [__m256; 2]>(*from) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; 16]) -> Self::V {
        // SAFETY: the token proves AVX2; 32 bytes of plain data.
        unsafe {
            let [low, high] = transmute::<[u16; 16], [std::arch::x86_64::__m128i; 2]>(*from);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(low))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(high))),
            ]
        }
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; 16]) {
        // SAFETY: both sides are 64 bytes of plain data.
        *to = unsafe { transmute::<[__m256; 2], [f32; 16]>(v) };
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        halves(a, b, |a, b| unsafe { _mm256_add_ps(a, b) })
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        halves(a, b, |a, b| unsafe { _mm256_sub_ps(a, b) })
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        halves(a, b, |a, b| unsafe { _mm256_mul_ps(a, b) })
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        halves(a, b, |a, b| unsafe { _mm256_div_ps(a, b) })
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token proves FMA.
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        halves(a, b, |a, b| unsafe { _mm256_max_ps(a, b) })
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        halves(a, b, |a, b| unsafe { _mm256_min_ps(a, b) })
    }

    #[inline(always)]
    fn keep_from(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        let keep = halves(x, limit, |x, limit| unsafe {
            _mm256_cmp_ps::<_CMP_NLT_UQ>(x, limit)
        });
        // SAFETY: the token proves AVX2.
        halves(keep, v, |keep, v| unsafe { _mm256_and_ps(keep, v) })
    }

    #[inline(always)]
    fn scale_pow2(self, v: Self::V, shifted: Self::V) -> Self::V {
        // SAFETY: the token proves AVX2.
        halves(v, shifted, |v, shifted| unsafe {
            let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), power))
        })
    }

    #[inline(always)]
    fn pair(self, low: u16, high: u16) -> [f32; 2] {
        widen_pair(low, high)
    }

    #[inline(always)]
    fn load_pairs(self, from: &[u32; 16]) -> Self::Weights {
        // SAFETY: the token proves AVX2; 64 bytes of plain data.
        unsafe {
            let [a, b] = transmute::<[u32; 16], [__m256i; 2]>(*from);
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let low = [_mm256_slli_epi32::<16>(a), _mm256_slli_epi32::<16>(b)];
            let high = [_mm256_and_si256(a, high), _mm256_and_si256(b, high)];
            [
                [_mm256_castsi256_ps(low[0]), _mm256_castsi256_ps(low[1])],
                [_mm256_castsi256_ps(high[0]), _mm256_castsi256_ps(high[1])],
            ]
        }
    }

    #[inline(always)]
    fn join_pairs(self, low: &[u16; 16], high: &[u16; 16]) -> Self::Weights {
        [self.load_bf16(low), self.load_bf16(high)]
    }

    #[inline(always)]
    fn dot(self, x: [f32; 2], w: Self::Weights, acc: Self::V) -> Self::V {
        let acc = self.mul_add(self.splat(x[0]), w[0], acc);
        self.mul_add(self.splat(x[1]), w[1], acc)
    }

    #[inline(always)]
    fn prefetch<T>(self, from: &T, bytes: usize) {
        prefetch(from, bytes);
    }
}
