//! Failures that other schedulers have published, none of which may occur here.

use super::scene::*;
use crate::job::JobSpec;
use crate::scheduler::*;

/// volcano#3291: two nodes, one free and one with a job of low priority. A job that needs both stayed pending, because
/// whoever looked for victims did not look at free nodes.
#[test]
fn volcano_3291_a_gang_takes_the_free_node_and_makes_room_on_the_other() {
    let view = mesh([offer(1, 8, 8), offer(2, 8, 8)])
        .runs(90, 1, spec(8, 0), &[])
        .with(1, gang(2, trial(8, 0)));
    let plan = view.planned();
    let mut spots = places(&plan, 1);
    spots.sort();
    assert_eq!((spots, victims(&plan)), (vec![1, 2], vec![job(90)]));
}

/// volcano#3567, with #3725 the case of two queues that keep each other from running: each takes back what the other has
/// just been given, and so on without end.
#[test]
fn volcano_3567_two_parties_do_not_take_a_place_from_each_other_in_turn() {
    let mut view = mesh([offer(1, 8, 0)]);
    view.offers[0].party = party(3);
    let of = |n: u16, by: u8, spec: JobSpec| Waiting { party: party(by), ..waits(n, spec) };
    view = view.waiting(of(1, 1, spec(8, 0))).waiting(of(2, 2, spec(8, 0)));
    let mut interruptions = 0;
    for round in 0..50 {
        // Both parties come with trials as well, which may preempt.
        let (by, trial) =
            (1 + (round % 2) as u8, if round < 10 { trial(8, 0) } else { spec(8, 0) });
        view = view.waiting(of(100 + round, by, trial));
        let plan = view.planned();
        interruptions += plan.victims.len();
        view.carry_out(&plan, u64::from(round) + 1);
        view.now = view.now.after(seconds(60));
        // Whoever was asked to end has; trials are short, and nothing else ends.
        let ended: Vec<Running> = {
            let over = |other: &&Running| {
                other.stopping.is_some() || other.class == crate::job::Class::Trial
            };
            view.running.iter().filter(over).cloned().collect()
        };
        for other in ended {
            view.running.retain(|each| (each.job, each.task) != (other.job, other.task));
            if other.stopping.is_some() {
                let n = u16::from_be_bytes([other.job.0[0], other.job.0[1]]);
                let mut back = of(n, other.party.0[0], spec(8, 0));
                (back.interrupted, back.preemptions) = (true, other.preemptions + 1);
                view.waiting.push(back);
            }
        }
    }
    assert!(interruptions <= 2, "each of the two at most once, not {interruptions} times");
    assert_eq!(view.running.len(), 1, "and in the end one of them runs");
}

/// volcano#3725: two queues deserve 5 of 10 GPUs each, and each has a job that wants 6. When the one that runs ends, both
/// stayed pending for ever.
#[test]
fn volcano_3725_of_two_jobs_that_want_more_than_their_half_one_runs() {
    let mut view = mesh([offer(1, 32, 10)]);
    let of = |n: u16, by: u8| Waiting { party: party(by), ..waits(n, spec(1, 6)) };
    view = view.waiting(of(1, 1)).waiting(of(2, 2));
    let plan = view.planned();
    assert_eq!(plan.places.len(), 1);
    view.carry_out(&plan, 5);
    assert_eq!(view.planned().places, []);
    view.running.clear();
    assert_eq!(view.planned().places.len(), 1, "and then the other");
}

/// volcano#5805: a gang loses a node. When the node is back, a new job with nothing to its name gets it, because the
/// gang still holds its other nodes and so has the larger share. It stays below its minimum for good.
#[test]
fn volcano_5805_a_gang_that_lost_a_node_comes_before_new_jobs() {
    let mut gang = waits(1, gang(2, spec(8, 0)));
    (gang.interrupted, gang.submitted) = (true, Time(0));
    let mut fresh = waits(2, spec(8, 0));
    fresh.party = party(2);
    let mut view =
        mesh([offer(1, 8, 0), offer(2, 8, 0)]).waiting(gang.clone()).waiting(fresh.clone());
    view.parties[0].usage = usage(1 << 40);
    assert_eq!((view.places(1).len(), view.places(2).len()), (2, 0));
    // Also while the node is still away: what is free is kept for it.
    let mut third = offer(3, 8, 0);
    third.away = Some(seconds(30));
    let mut view = mesh([offer(1, 8, 0), offer(2, 8, 0), third]).runs(90, 2, spec(8, 0), &[]);
    view = view.waiting(gang).waiting(fresh);
    let plan = view.planned();
    assert_eq!((why(&plan, 1), why(&plan, 2)), (Some(Why::Reserved), Some(Why::NoRoom)));
}

/// kueue#10815: victims were chosen without a look at the topology, and the plan that came of it was then refused.
#[test]
fn kueue_10815_victims_are_chosen_where_the_job_can_run() {
    let labelled = |n, clique: &str| {
        let mut offer = offer(n, 8, 0);
        offer.labels.insert(name("clique"), clique.parse().unwrap());
        offer
    };
    let mut view = mesh([labelled(1, "a"), labelled(2, "a"), labelled(3, "b"), labelled(4, "b")]);
    for n in [1, 2, 3, 4] {
        // Those outside the clique would be the cheaper victims.
        let grace_ms = if n <= 2 { SECOND } else { 600 * SECOND };
        view = view.runs(90 + n, n as u8, JobSpec { grace_ms, ..spec(8, 0) }, &[]);
    }
    let mut job_spec = gang(2, trial(8, 0));
    job_spec.place.labels.insert(name("clique"), "b".parse().unwrap());
    let plan = view.with(1, job_spec).planned();
    assert_eq!(victims(&plan), [job(93), job(94)]);
    let mut spots = places(&plan, 1);
    spots.sort();
    assert_eq!(spots, [3, 4]);
}

/// dstack#4146: a task for two nodes got one, and stayed half provisioned when there was no second.
#[test]
fn dstack_4146_a_gang_that_gets_half_of_its_nodes_gets_none() {
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0)]).runs(90, 1, trial(1, 0), &[]);
    for spec in [spec(8, 0), trial(8, 0)] {
        let plan = view.clone().with(1, gang(2, spec)).with(2, super::scene::spec(8, 0)).planned();
        assert_eq!(why(&plan, 1), Some(Why::NoRoom));
        assert_eq!(places(&plan, 2), [2], "and what it would have had is for others");
    }
}
