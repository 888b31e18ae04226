//! The pool runs every task once, waits for all, and passes panics on.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use peagle_kernels::Pool;

#[test]
fn every_task_runs_once() {
    for threads in 1..=4 {
        let mut pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads);
        for tasks in (0..40).chain([1000]) {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|claims| {
                for task in claims.flatten() {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(
                counts
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) == 1)
            );
        }
    }
}

#[test]
fn regions_follow_each_other_and_pauses() {
    let mut pool = Pool::new(3);
    let total = AtomicUsize::new(0);
    for region in 0..2000 {
        if region % 500 == 0 {
            // Long enough for the workers to park.
            std::thread::sleep(Duration::from_millis(2));
        }
        pool.run(7, &|claims| {
            total.fetch_add(claims.flatten().sum(), Ordering::Relaxed);
        });
    }
    assert_eq!(total.into_inner(), 2000 * 21);
}

#[test]
fn a_panic_ends_the_region_and_reaches_the_caller() {
    let mut pool = Pool::new(2);
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.run(10, &|claims| {
            claims
                .flatten()
                .for_each(|task| assert!(task != 3, "three"));
        });
    }));
    let message = *result.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(message, "three");
    let ran = AtomicUsize::new(0);
    pool.run(10, &|claims| {
        ran.fetch_add(claims.flatten().count(), Ordering::Relaxed);
    });
    assert_eq!(ran.into_inner(), 10);
}
