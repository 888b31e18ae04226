//! A fork-join pool for regions of tens of microseconds.
//!
//! One decode step of a small model is about 150 parallel regions of 50 to 100 us, so handing
//! out work must cost well under a microsecond. Tasks are claimed from an atomic word, many at
//! first, one at the end; the caller works too, and a worker that the system has put aside
//! delays nobody unless it holds a task. Workers spin for a while after their last task, then
//! park.
//! `benches/kernels.rs` prints the cost of an empty region beside rayon's.
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long an idle worker spins before it parks.
const SPIN: Duration = Duration::from_micros(150);

/// Most tasks one region may have.
const MAX_TASKS: usize = (1 << 24) - 1;

/// What each thread calls that got tasks.
struct Job<'a> {
    work: &'a (dyn Fn(&mut Claims<'_>) + Sync),
}

/// The tasks of one thread in one region: ranges of indices, claimed as they are asked for.
pub struct Claims<'a> {
    shared: Option<&'a Shared>,
    next: Option<Range<usize>>,
    claimed: usize,
}

impl Iterator for Claims<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let range = self.next.take().or_else(|| self.shared?.claim())?;
        self.claimed += range.len();
        Some(range)
    }
}

/// All of `0..tasks` on this thread.
fn alone(tasks: usize, work: &(dyn Fn(&mut Claims<'_>) + Sync)) {
    if tasks > 0 {
        work(&mut Claims {
            shared: None,
            next: Some(0..tasks),
            claimed: 0,
        });
    }
}

/// Keeps what is written by different threads on different cache lines.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    threads: usize,
    /// `epoch << 48 | tasks << 24 | next`: a claim is a compare-and-swap that adds to `next`.
    word: Line<AtomicU64>,
    /// Finished tasks of the current region.
    done: Line<AtomicUsize>,
    job: AtomicPtr<Job<'static>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

struct Worker {
    parked: Arc<Line<AtomicBool>>,
    handle: JoinHandle<()>,
}

/// A fixed set of worker threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
}

impl Shared {
    /// Take some of the tasks that are left.
    fn claim(&self) -> Option<Range<usize>> {
        let mut word = self.word.0.load(Ordering::SeqCst);
        loop {
            let (tasks, next) = (word as usize >> 24 & MAX_TASKS, word as usize & MAX_TASKS);
            if next >= tasks {
                return None;
            }
            // An equal share of half of what is left: few claims, and an even end.
            let share = (tasks - next).div_ceil(2 * self.threads);
            let share = share.max((tasks / 32).min(4)).min(tasks - next);
            let after = word + share as u64;
            match self
                .word
                .0
                .compare_exchange(word, after, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(next..next + share),
                Err(now) => word = now,
            }
        }
    }

    /// Claim and run tasks until none is left; whether there were any.
    fn work(&self) -> bool {
        let Some(first) = self.claim() else {
            return false;
        };
        let mut claims = Claims {
            shared: Some(self),
            next: Some(first),
            claimed: 0,
        };
        let job = self.job.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `Pool::run` keeps the job alive until every task has been counted in
            // `done`, and the first one here, claimed after the job was published, is not.
            let job = unsafe { &*job };
            (job.work)(&mut claims);
        }));
        if let Err(panic) = result {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        // The region cannot end, nor the next one begin, before this. What a panic left
        // unasked for counts as done, too.
        claims.by_ref().for_each(drop);
        self.done.0.fetch_add(claims.claimed, Ordering::Release);
        true
    }
}

impl Shared {
    /// Run tasks, or wait for some; false if none came for [`SPIN`].
    fn spin(&self) -> bool {
        let idle = Instant::now();
        while !self.work() {
            if self.stop.load(Ordering::Relaxed) || idle.elapsed() > SPIN {
                return false;
            }
            for _ in 0..8 {
                std::hint::spin_loop();
            }
        }
        true
    }
}

fn worker(shared: &Shared, parked: &AtomicBool) {
    while !shared.stop.load(Ordering::SeqCst) {
        if shared.spin() {
            continue;
        }
        // Announce first, look again, then sleep: `Pool::run` does the reverse.
        parked.store(true, Ordering::SeqCst);
        while parked.load(Ordering::SeqCst) && !shared.stop.load(Ordering::SeqCst) {
            if shared.work() {
                break;
            }
            thread::park();
        }
        parked.store(false, Ordering::SeqCst);
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller's own among them.
    pub fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            threads,
            word: Line(AtomicU64::new(0)),
            done: Line(AtomicUsize::new(0)),
            job: AtomicPtr::new(std::ptr::null_mut()),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let spawn = |index| {
            let (shared, parked) = (shared.clone(), Arc::new(Line(AtomicBool::new(false))));
            let flag = parked.clone();
            let handle = thread::Builder::new()
                .name(format!("peagle-{index}"))
                .spawn(move || worker(&shared, &flag.0))
                .expect("the system gives no more threads");
            Worker { parked, handle }
        };
        let workers = (1..threads).map(spawn).collect();
        Self { shared, workers }
    }

    /// Threads that work on a region, the caller's among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Call `work` on some threads, with claims that hand out each index of `0..tasks` once,
    /// and wait. `work` must take all claims it gets.
    ///
    /// A panic of `work` is raised here once the region has ended.
    pub fn run(&mut self, tasks: usize, work: &(dyn Fn(&mut Claims<'_>) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            return alone(tasks, work);
        }
        assert!(tasks <= MAX_TASKS, "{tasks} tasks in one region");
        let shared = &*self.shared;
        let job = Job { work };
        // SAFETY: only the lifetime changes, and this function returns (or unwinds) only
        // after `done` says that all tasks have been run; nobody reads the job after that.
        let job = std::ptr::from_ref(&job).cast::<Job<'static>>().cast_mut();
        shared.job.store(job, Ordering::Relaxed);
        shared.done.0.store(0, Ordering::Relaxed);
        let epoch = (shared.word.0.load(Ordering::Relaxed) >> 48) + 1;
        shared
            .word
            .0
            .store(epoch << 48 | (tasks as u64) << 24, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.parked.0.load(Ordering::SeqCst) {
                worker.parked.0.store(false, Ordering::SeqCst);
                worker.handle.thread().unpark();
            }
        }
        shared.work();
        let mut spins = 0_u32;
        while shared.done.0.load(Ordering::Acquire) < tasks {
            std::hint::spin_loop();
            spins += 1;
            if spins > 20_000 {
                thread::yield_now();
            }
        }
        if let Some(panic) = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.parked.0.store(false, Ordering::SeqCst);
            worker.handle.thread().unpark();
            // A worker never panics: tasks are caught.
            let _ = worker.handle.join();
        }
    }
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Use `threads` threads for the regions that start from now on (at least 1).
pub fn set_num_threads(threads: usize) {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    THREADS.store(threads.max(1), Ordering::Relaxed);
    *pool = None;
}

/// Threads in use: what [`set_num_threads`] said, else one per available core.
pub fn num_threads() -> usize {
    // Asked once: the answer reads control-group files and takes some 30 us.
    static CORES: OnceLock<usize> = OnceLock::new();
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            *CORES.get_or_init(|| thread::available_parallelism().map_or(1, std::num::NonZero::get))
        }
        threads => threads,
    }
}

/// Run a region on the process's pool, or on this thread alone while another one uses it:
/// `work` as in [`Pool::run`].
pub(crate) fn run_claims(tasks: usize, work: impl Fn(&mut Claims<'_>) + Sync) {
    if tasks > 1
        && let Ok(mut pool) = POOL.try_lock()
    {
        return pool
            .get_or_insert_with(|| Pool::new(num_threads()))
            .run(tasks, &work);
    }
    alone(tasks, &work);
}

/// Call `task(0)` .. `task(tasks - 1)`, each once, on any threads, and wait.
pub(crate) fn run(tasks: usize, task: impl Fn(usize) + Sync) {
    run_claims(tasks, |claims| claims.flatten().for_each(&task));
}
