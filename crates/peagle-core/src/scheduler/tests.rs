use super::*;
use crate::plan::{DraftPlan, Drafts, Plan};
use crate::verify::{Verdicts, Walk};

const CONFIG: SchedulerConfig = SchedulerConfig {
    num_blocks: 64,
    block_size: 4,
    max_num_seqs: 8,
    max_num_batched_tokens: 64,
    max_model_len: 64,
    num_speculative_tokens: 4,
    verification: Method::Coupled,
};

fn params(max_tokens: usize) -> RequestParams {
    RequestParams {
        max_tokens,
        ..RequestParams::default()
    }
}

fn scheduler(config: SchedulerConfig, prompt_lens: &[usize], max_tokens: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(config).unwrap();
    for (id, &len) in prompt_lens.iter().enumerate() {
        scheduler
            .add(RequestId(id as i64), &vec![1; len], params(max_tokens))
            .unwrap();
    }
    scheduler
}

/// Verdicts that accept up to `accepted` drafts of each window; every token is 5.
fn accept(plan: &Plan, accepted: usize) -> Verdicts {
    let mut verdicts = Verdicts::new(plan.step);
    for window in &plan.windows {
        let path: Vec<i32> = (0..accepted.min(window.tree.len()) as i32).collect();
        let token_ids = vec![5; path.len() + 1];
        verdicts.push(
            window.request_id,
            Ok(Walk {
                token_ids,
                path,
                ..Walk::default()
            }),
        );
    }
    verdicts
}

/// Chains of fives, as long as the plan asks for.
fn chains(plan: &DraftPlan) -> Drafts {
    Drafts {
        request_ids: plan.request_ids.clone(),
        starts: plan.draft_start.clone(),
        token_ids: vec![5; plan.draft_rows.len()],
        parents: plan.k.iter().flat_map(|&k| -1..k - 1).collect(),
        ..Drafts::default()
    }
}

fn step(scheduler: &mut Scheduler, drafts: Option<&Drafts>, accepted: usize) -> StepOutput {
    let plan = scheduler.schedule(drafts).unwrap();
    scheduler.update(&accept(&plan, accepted), None).unwrap()
}

fn ids(plan: &Plan) -> Vec<i64> {
    plan.request_ids.iter().map(|id| id.0).collect()
}

#[test]
fn usage_is_max_tokens_for_every_length_and_depth() {
    for k in 0..6 {
        for max_tokens in 1..=20 {
            let config = SchedulerConfig {
                num_speculative_tokens: k,
                ..CONFIG
            };
            let mut scheduler = scheduler(config, &[3], max_tokens);
            let (mut drafts, mut tokens) = (None, 0);
            while scheduler.num_unfinished() > 0 {
                let output = step(&mut scheduler, drafts.as_ref(), usize::MAX);
                drafts = Some(chains(&output.draft));
                tokens += output.outputs[0].token_ids.len();
            }
            let stats = scheduler.stats();
            assert_eq!((tokens, stats.committed), (max_tokens, max_tokens as u64));
            // No draft reached past the end, so nothing was thrown away.
            assert_eq!(
                (stats.discarded_after_stop, stats.accepted),
                (0, stats.drafted)
            );
        }
    }
}

#[test]
fn the_context_ends_a_request_with_length_and_leaves_its_neighbour_alone() {
    for prompt_len in 40..64 {
        let mut scheduler = scheduler(CONFIG, &[prompt_len, 3], 30);
        let (mut drafts, mut lens, mut reasons) = (None, [prompt_len, 3], [None; 2]);
        while scheduler.num_unfinished() > 0 {
            let output = step(&mut scheduler, drafts.as_ref(), usize::MAX);
            drafts = Some(chains(&output.draft));
            for step in output.outputs {
                lens[step.request_id.0 as usize] += step.token_ids.len();
                reasons[step.request_id.0 as usize] = step.finish_reason;
            }
        }
        assert_eq!(lens, [64.min(prompt_len + 30), 33]);
        assert_eq!(reasons, [Some(FinishReason::Length); 2]);
    }
}

#[test]
fn tokens_past_an_end_token_are_counted_but_not_committed() {
    let mut scheduler = Scheduler::new(CONFIG).unwrap();
    let with_eos = RequestParams {
        eos_token_ids: vec![5],
        ..params(20)
    };
    scheduler
        .add(
            RequestId(1),
            &[1, 2],
            RequestParams {
                ignore_eos: true,
                ..with_eos
            },
        )
        .unwrap();
    let output = step(&mut scheduler, None, 0);
    let plan = scheduler.schedule(Some(&chains(&output.draft))).unwrap();
    let output = scheduler.update(&accept(&plan, 4), Some(&[2])).unwrap();
    let step = &output.outputs[0];
    assert_eq!(step.finish_reason, Some(FinishReason::Stop));
    assert_eq!(
        (step.token_ids.len(), step.num_drafted, step.num_accepted),
        (2, 4, 2)
    );
    let stats = scheduler.stats();
    assert_eq!((stats.committed, stats.discarded_after_stop), (3, 3));
    assert_eq!((stats.windows, stats.drafted, stats.accepted), (1, 4, 2));
    assert_eq!(stats.accepted_by_position, [1, 1]);
    assert_eq!(stats.free_blocks, CONFIG.num_blocks);
}

#[test]
fn a_cut_of_zero_keeps_nothing() {
    let mut scheduler = scheduler(CONFIG, &[2], 20);
    let plan = scheduler.schedule(None).unwrap();
    let output = scheduler.update(&accept(&plan, 0), Some(&[0])).unwrap();
    assert_eq!(output.outputs[0].finish_reason, Some(FinishReason::Stop));
    assert!(output.outputs[0].token_ids.is_empty());
    assert_eq!(scheduler.stats().committed, 0);
}

#[test]
fn a_prompt_is_computed_in_chunks_and_the_drafter_follows() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 4,
        ..CONFIG
    };
    let mut scheduler = scheduler(config, &[10], 8);
    let mut rows = Vec::new();
    let mut draft_inputs = Vec::new();
    let mut drafts = None;
    for _ in 0..3 {
        let plan = scheduler.schedule(drafts.as_ref()).unwrap();
        rows.push((plan.batch.num_rows(), plan.logits_rows.len()));
        let output = scheduler.update(&accept(&plan, 0), None).unwrap();
        drafts = Some(chains(&output.draft));
        draft_inputs.push((output.draft.batch.context_lens, output.draft.batch.slots));
    }
    assert_eq!(rows, [(4, 0), (4, 0), (2, 1)]);
    // Row 4 needs slot 4, which is not allocated after the first chunk.
    assert_eq!(draft_inputs[0], (vec![1], vec![1, 2, 3]));
    assert_eq!(draft_inputs[1], (vec![4], vec![4, 5, 6, 7]));
    assert_eq!(draft_inputs[2], (vec![8], vec![8, 9, 10, 11, 12, 13]));
}

#[test]
fn a_drafter_that_did_not_run_is_asked_again() {
    let mut scheduler = scheduler(CONFIG, &[3], 20);
    let first = step(&mut scheduler, None, 0).draft;
    assert_eq!(first.batch.slots, [1, 2, 3, 4, 5, 6]);
    let second = step(&mut scheduler, None, 0).draft;
    assert_eq!(second.batch.slots, [1, 2, 3, 4, 5, 6, 7]);
    let third = step(
        &mut scheduler,
        Some(&Drafts {
            starts: vec![0],
            ..Drafts::default()
        }),
        0,
    );
    assert_eq!(third.draft.batch.slots, [5, 6, 7, 8]);
}

#[test]
fn requests_without_speculation_never_reach_the_drafter() {
    let mut scheduler = Scheduler::new(CONFIG).unwrap();
    let off = RequestParams {
        num_speculative_tokens: Some(0),
        ..params(9)
    };
    let lower = RequestParams {
        num_speculative_tokens: Some(2),
        ..params(9)
    };
    scheduler.add(RequestId(0), &[1, 2, 3], off).unwrap();
    scheduler.add(RequestId(1), &[1, 2, 3], lower).unwrap();
    // Too short for a draft: its second token is its last.
    scheduler.add(RequestId(2), &[1, 2, 3], params(2)).unwrap();
    let output = step(&mut scheduler, None, 0);
    assert_eq!(output.draft.request_ids, [RequestId(1)]);
    assert_eq!(output.draft.k, [2]);
}

#[test]
fn a_short_budget_cuts_trees_before_it_starves_anybody() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 8,
        ..CONFIG
    };
    let mut scheduler = scheduler(config, &[2, 2, 2], 20);
    let output = step(&mut scheduler, None, 0);
    let plan = scheduler.schedule(Some(&chains(&output.draft))).unwrap();
    let trees: Vec<usize> = plan
        .windows
        .iter()
        .map(|window| window.tree.len())
        .collect();
    assert_eq!(trees, [4, 1, 0]);
    assert_eq!(plan.batch.num_rows(), 8);
}

#[test]
fn requests_are_admitted_in_order_and_preempted_newest_first() {
    let config = SchedulerConfig {
        num_blocks: 5,
        num_speculative_tokens: 0,
        ..CONFIG
    };
    let mut scheduler = scheduler(config, &[7, 7, 8], 8);
    // One block is left, and the third needs two.
    let plan = scheduler.schedule(None).unwrap();
    assert_eq!(ids(&plan), [0, 1]);
    scheduler.update(&accept(&plan, 0), None).unwrap();
    let plan = scheduler.schedule(None).unwrap();
    assert_eq!(ids(&plan), [0, 1]);
    scheduler.update(&accept(&plan, 0), None).unwrap();
    // Slot 8 of both is needed, and one block is free.
    let plan = scheduler.schedule(None).unwrap();
    assert_eq!(ids(&plan), [0]);
    assert_eq!(scheduler.stats().preemptions, 1);
    scheduler.update(&accept(&plan, 0), None).unwrap();
    // The preempted one goes first again, with prompt and output to recompute.
    assert_eq!(scheduler.waiting[0].id, RequestId(1));
    let mut resumed = None;
    while resumed.is_none() {
        let plan = scheduler.schedule(None).unwrap();
        if let Some(place) = ids(&plan).iter().position(|&id| id == 1) {
            let rows = plan.batch.query_start[place + 1] - plan.batch.query_start[place];
            resumed = Some((plan.batch.context_lens[place], rows));
        }
        scheduler.update(&accept(&plan, 0), None).unwrap();
    }
    assert_eq!(resumed, Some((0, 9)));
}

#[test]
fn look_ahead_shrinks_and_never_preempts() {
    let config = SchedulerConfig {
        num_blocks: 4,
        ..CONFIG
    };
    let mut scheduler = scheduler(config, &[4, 4], 5);
    let output = step(&mut scheduler, None, 0);
    // Each has five tokens in one block; two blocks are left, one for each.
    assert_eq!(output.draft.k, [3, 3]);
    let mut drafts = chains(&output.draft);
    while scheduler.num_unfinished() > 0 {
        drafts = chains(&step(&mut scheduler, Some(&drafts), 1).draft);
    }
    assert_eq!(scheduler.stats().preemptions, 0);
}

#[test]
fn look_ahead_is_taken_back_before_anybody_is_preempted() {
    let config = SchedulerConfig {
        num_blocks: 3,
        ..CONFIG
    };
    let mut scheduler = Scheduler::new(config).unwrap();
    let plain = RequestParams {
        num_speculative_tokens: Some(0),
        ..params(4)
    };
    scheduler.add(RequestId(0), &[1; 4], plain).unwrap();
    scheduler.add(RequestId(1), &[1; 2], params(6)).unwrap();
    let output = step(&mut scheduler, None, 0);
    assert_eq!((output.draft.request_ids.len(), output.draft.k[0]), (1, 4));
    assert_eq!(scheduler.free_blocks(), 0);
    // Request 0 needs a second block; request 1 holds one that is look-ahead only.
    let plan = scheduler.schedule(Some(&chains(&output.draft))).unwrap();
    assert_eq!(ids(&plan), [0, 1]);
    assert_eq!(plan.windows[1].tree.len(), 1);
    assert_eq!(scheduler.stats().preemptions, 0);
}

#[test]
fn calls_out_of_turn_are_refused_and_change_nothing() {
    let mut scheduler = scheduler(CONFIG, &[3], 20);
    let refused = |result: Result<Plan>| matches!(result, Err(Error::StepOrder { .. }));
    let early = scheduler.update(&Verdicts::new(0), None);
    assert!(matches!(early, Err(Error::StepOrder { .. })));
    let plan = scheduler.schedule(None).unwrap();
    assert!(refused(scheduler.schedule(None)));
    let mut stale = accept(&plan, 0);
    stale.step += 1;
    assert!(matches!(
        scheduler.update(&stale, None),
        Err(Error::StepOrder { .. })
    ));
    let foreign = Verdicts {
        request_ids: vec![RequestId(9)],
        ..accept(&plan, 0)
    };
    assert!(matches!(
        scheduler.update(&foreign, None),
        Err(Error::StepOrder { .. })
    ));
    for cuts in [&[][..], &[1, 1], &[2]] {
        let cut = scheduler.update(&accept(&plan, 0), Some(cuts));
        assert!(matches!(cut, Err(Error::ShapeMismatch { .. })), "{cuts:?}");
    }
    assert!(scheduler.update(&accept(&plan, 0), Some(&[-1])).is_ok());
}

#[test]
fn drafts_that_do_not_fit_are_refused_and_change_nothing() {
    let mut scheduler = scheduler(CONFIG, &[3, 9], 20);
    let draft = step(&mut scheduler, None, 0).draft;
    let good = chains(&draft);
    let first = RequestId(0);
    let cases = [
        Drafts {
            starts: vec![0, 4],
            ..good.clone()
        },
        Drafts {
            starts: vec![1, 4, 8],
            ..good.clone()
        },
        Drafts {
            starts: vec![0, 4, 7],
            ..good.clone()
        },
        Drafts {
            starts: vec![0, 9, 8],
            ..good.clone()
        },
        Drafts {
            starts: vec![0, 3, 8],
            ..good.clone()
        },
        Drafts {
            parents: vec![-1; 7],
            ..good.clone()
        },
        Drafts {
            parents: vec![-1; 8],
            ..good.clone()
        },
        Drafts {
            token_ids: vec![-5; 8],
            ..good.clone()
        },
        Drafts {
            request_ids: vec![first, RequestId(7)],
            ..good.clone()
        },
    ];
    for drafts in &cases {
        assert!(scheduler.schedule(Some(drafts)).is_err(), "{drafts:?}");
    }
    let plan = scheduler.schedule(Some(&good)).unwrap();
    assert!(plan.windows.iter().all(|window| window.tree.len() == 4));
}

#[test]
fn drafts_of_requests_that_ended_meanwhile_are_ignored() {
    let mut scheduler = scheduler(CONFIG, &[3, 3], 20);
    let draft = step(&mut scheduler, None, 0).draft;
    assert!(scheduler.abort(RequestId(0)));
    let plan = scheduler.schedule(Some(&chains(&draft))).unwrap();
    assert_eq!(ids(&plan), [1]);
    assert_eq!(plan.windows[0].tree.len(), 4);
}

#[test]
fn a_request_too_large_for_the_pool_is_refused_with_the_numbers() {
    let config = SchedulerConfig {
        num_blocks: 3,
        ..CONFIG
    };
    let mut scheduler = Scheduler::new(config).unwrap();
    // 13 tokens: the last one's KV is never computed, so 12 slots suffice.
    assert_eq!(scheduler.add(RequestId(1), &[1; 5], params(8)), Ok(()));
    let error = scheduler.add(RequestId(2), &[1; 6], params(8)).unwrap_err();
    assert_eq!(
        error,
        Error::KvCapacity {
            id: RequestId(2),
            needed: 4,
            total: 3
        }
    );
    assert_eq!(scheduler.num_unfinished(), 1);
    while scheduler.num_unfinished() > 0 {
        step(&mut scheduler, None, 0);
    }
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    for (config, wrong) in [
        (
            SchedulerConfig {
                num_blocks: 0,
                ..CONFIG
            },
            "num_blocks",
        ),
        (
            SchedulerConfig {
                block_size: 0,
                ..CONFIG
            },
            "block_size",
        ),
        (
            SchedulerConfig {
                max_num_seqs: 0,
                ..CONFIG
            },
            "max_num_seqs",
        ),
        (
            SchedulerConfig {
                max_num_batched_tokens: 0,
                ..CONFIG
            },
            "max_num_batched_tokens",
        ),
        (
            SchedulerConfig {
                max_model_len: 1,
                ..CONFIG
            },
            "max_model_len",
        ),
        (
            SchedulerConfig {
                num_blocks: usize::MAX,
                ..CONFIG
            },
            "num_blocks",
        ),
    ] {
        match Scheduler::new(config) {
            Err(Error::InvalidConfig { name, .. }) => assert_eq!(name, wrong),
            other => panic!("{wrong}: {other:?}"),
        }
    }
}
