//! Counters of a scheduler.

/// Counts since the scheduler was made, and what it holds now.
///
/// Everything about tokens is cut at the end of each request: `accepted` and `committed` stop where
/// its text stops, and what verification emitted beyond is in `discarded_after_stop`. The mean
/// acceptance length with the extra token is `1 + accepted / windows`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps updated.
    pub steps: u64,
    /// Verified windows that had a draft.
    pub windows: u64,
    /// Draft tokens verified.
    pub drafted: u64,
    /// Draft tokens accepted and committed.
    pub accepted: u64,
    /// Output tokens committed.
    pub committed: u64,
    /// Tokens that verification emitted past the end of their request.
    pub discarded_after_stop: u64,
    /// Requests sent back to recompute.
    pub preemptions: u64,
    /// Draws whose two best scores differed by less than 1e-6 (relative).
    pub near_ties: u64,
    /// Windows with a draft that accepted (and committed) their i-th token, by i.
    pub accepted_by_position: Vec<u64>,
    /// Requests that hold KV.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// KV blocks nobody holds.
    pub free_blocks: usize,
    /// KV blocks in use.
    pub used_blocks: usize,
}

impl Stats {
    /// Counts a verified window with a draft.
    pub(crate) fn count_window(&mut self, drafted: usize, accepted: usize) {
        self.windows += 1;
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        if self.accepted_by_position.len() < accepted {
            self.accepted_by_position.resize(accepted, 0);
        }
        for count in &mut self.accepted_by_position[..accepted] {
            *count += 1;
        }
    }
}
