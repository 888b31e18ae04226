//! Sixteen `f32` lanes on every CPU, chosen at run time.
//!
//! [`Simd`] is implemented by zero-sized tokens, one per CPU level, that exist only on a CPU
//! of that level. [`Level::run`] picks the token; [`Simd::enter`] compiles a piece of [`Work`]
//! for it: all of the piece is inlined into one `#[target_feature]` function.
mod baseline;
#[cfg(target_arch = "x86_64")]
mod x86;

use bytemuck::Pod;

/// Vector operations of one CPU level. Every method treats the sixteen lanes alike.
pub trait Simd: Copy + Send + Sync {
    /// Sixteen `f32` lanes.
    type V: Copy;
    /// Sixteen pairs of bfloat16 weights, ready to multiply.
    type Weights: Copy;
    /// One pair of bfloat16 activations in the form that `dot` wants.
    type Pair: Pod + Send + Sync;
    /// Accumulators that fit the registers: rows of a linear's tile.
    const MAX_ROWS: usize;

    /// Run `work` compiled for this level.
    fn enter<W: Work<Self>>(self, work: W) -> W::Output;
    /// All lanes the same.
    fn splat(self, x: f32) -> Self::V;
    /// Lanes from memory.
    fn load(self, from: &[f32; 16]) -> Self::V;
    /// Lanes from sixteen bfloat16 numbers.
    fn load_bf16(self, from: &[u16; 16]) -> Self::V;
    /// Lanes to memory.
    fn store(self, v: Self::V, to: &mut [f32; 16]);
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the CPU can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The lesser; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `v`, but 0 where `x < limit`.
    fn keep_from(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
    /// `v * 2^n`, where `n` sits in the low bits of `shifted`'s mantissa.
    fn scale_pow2(self, v: Self::V, shifted: Self::V) -> Self::V;
    /// Prepare a pair of activations.
    fn pair(self, low: u16, high: u16) -> Self::Pair;
    /// Sixteen pairs of weights from a panel.
    fn load_pairs(self, from: &[u32; 16]) -> Self::Weights;
    /// Sixteen pairs from their halves.
    fn join_pairs(self, low: &[u16; 16], high: &[u16; 16]) -> Self::Weights;
    /// Call the cache line `bytes` after `from`, which need not exist, to the L2 cache.
    fn prefetch<T>(self, from: &T, bytes: usize);
    /// `acc + x.low * w.low + x.high * w.high`, in one fixed order and rounding per level.
    fn dot(self, x: Self::Pair, w: Self::Weights, acc: Self::V) -> Self::V;
}

/// A CPU level this build has kernels for. Only levels the CPU has can be obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

/// Work for the level of `S`. `run` must be `#[inline(always)]`, and all it calls too.
pub trait Work<S: Simd> {
    /// What it returns.
    type Output;

    /// Do it.
    fn run(self, s: S) -> Self::Output;
}

/// Something to be done at a level that is known at run time only. It [`enter`]s the level
/// wherever numbers are crunched.
///
/// [`enter`]: Simd::enter
pub(crate) trait Dispatch {
    fn run<S: Simd>(self, s: S);
}

impl Level {
    /// Every level this CPU can run, slowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self(Kind::Baseline)];
        #[cfg(target_arch = "x86_64")]
        levels.extend(x86::available().into_iter().map(Self));
        levels
    }

    /// The fastest level of this CPU.
    pub fn best() -> Self {
        static BEST: std::sync::OnceLock<Level> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().expect("baseline is always there"))
    }

    /// `baseline`, `avx2`, `avx512` or `avx512_bf16`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Bf16 => "avx512_bf16",
        }
    }

    /// Run `work` with the token of this level.
    pub(crate) fn run(self, work: impl Dispatch) {
        match self.0 {
            Kind::Baseline => work.run(baseline::Baseline),
            #[cfg(target_arch = "x86_64")]
            kind => x86::run(kind, work),
        }
    }
}
