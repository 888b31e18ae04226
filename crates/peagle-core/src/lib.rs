//! The pure core of peagle: scheduler, paged KV bookkeeping, token trees and exact verification.
//!
//! Nothing in this crate knows Python, performs I/O, reads a clock or keeps global state. A step is
//! three calls: [`Scheduler::schedule`] says which rows the target computes,
//! [`verify`](verify::verify) turns the target's logits into verdicts, [`Scheduler::update`]
//! commits them.

#![forbid(unsafe_code)]

pub mod distribution;
pub mod draft;
pub mod drawn;
pub mod error;
pub mod ids;
pub mod kv;
pub mod logprobs;
pub mod noise;
pub mod plan;
pub mod processors;
pub mod request;
pub mod scheduler;
pub mod simd;
pub mod stats;
pub mod tree;
pub mod verify;

pub use distribution::Sampling;
pub use draft::{DraftMode, DraftNoise};
pub use error::{Error, Result};
pub use ids::{BlockId, RequestId, Slot, TokenId};
pub use logprobs::{LogprobMode, TokenLogprobs, WantedLogprobs};
pub use noise::{NoiseKey, Purpose, Seed};
pub use plan::{Batch, DraftLaws, DraftPlan, Drafts, Plan};
pub use processors::{CustomProcessor, LogitsProcessor, Processors};
pub use request::RequestParams;
pub use scheduler::{RequestStep, Scheduler, SchedulerConfig, StepOutput};
pub use stats::Stats;
pub use tree::TokenTree;
pub use verify::{DraftProbs, Logits, Method, Verdicts, Window};
