//! Who has to make room.

use super::scene::*;
use crate::job::JobSpec;
use crate::scheduler::*;

fn graceful(seconds: u64, spec: JobSpec) -> JobSpec {
    JobSpec { grace_ms: seconds * SECOND, ..spec }
}

#[test]
fn a_trial_without_room_preempts_and_is_placed_at_once_on_what_its_victim_has() {
    let view = mesh([offer(1, 8, 1)]).runs(90, 1, spec(8, 1), &[0]).with(1, trial(4, 1));
    let plan = view.planned();
    assert_eq!(plan.victims, [Victim { job: job(90), task: 0, fence: 1090, for_job: job(1) }]);
    assert_eq!(plan.places[0].allotment.gpus, [uuid(1, 0)]);
    assert_eq!(
        view.clone().with(2, spec(1, 0)).planned().places.len(),
        1,
        "nothing is free until it has ended"
    );
}

#[test]
fn best_effort_jobs_preempt_nobody_and_trials_are_not_preempted() {
    let full = |running: JobSpec| mesh([offer(1, 8, 0)]).runs(90, 1, running, &[]);
    assert_eq!(full(spec(8, 0)).with(1, spec(8, 0)).planned().victims, []);
    assert_eq!(full(trial(8, 0)).with(1, trial(8, 0)).planned().victims, []);
}

#[test]
fn nobody_is_preempted_while_a_node_is_free() {
    let view = mesh([offer(1, 8, 0), offer(2, 64, 0)]).runs(90, 1, spec(8, 0), &[]);
    let mut far = view.clone();
    far.offers[0].versions.insert(version(1));
    let plan = far.with(1, reads(trial(8, 0), 1, 100 * GIB)).planned();
    assert_eq!((victims(&plan), places(&plan, 1)), (vec![], vec![2]), "not even where the data is");
}

#[test]
fn of_those_that_are_large_enough_the_small_ones_with_a_short_grace_go() {
    let nodes = || mesh([offer(1, 32, 0), offer(2, 32, 0), offer(3, 32, 0)]);
    let view = nodes()
        .runs(90, 1, graceful(10, spec(32, 0)), &[])
        .runs(91, 2, graceful(10, spec(30, 0)), &[])
        .runs(92, 3, graceful(120, spec(28, 0)), &[])
        .runs(93, 2, trial(2, 0), &[])
        .runs(94, 3, trial(2, 0), &[]);
    // 1 + 4/12, 0.94 + 4/12, 0.88 + 4.
    assert_eq!(victims(&view.clone().with(1, trial(20, 0)).planned()), [job(91)]);
    assert_eq!(
        victims(&view.clone().with(1, trial(31, 0)).planned()),
        [job(90)],
        "the others are too small"
    );
    let patient = view.settings(|settings| settings.grace_weight = 0);
    assert_eq!(victims(&patient.with(1, trial(20, 0)).planned()), [job(92)]);
}

#[test]
fn what_is_free_beside_a_victim_counts() {
    let view = mesh([offer(1, 8, 0)]).runs(90, 1, spec(5, 0), &[]).with(1, trial(8, 0));
    assert_eq!(victims(&view.planned()), [job(90)]);
}

#[test]
fn nobody_is_preempted_more_often_than_the_settings_say() {
    let once =
        mesh([offer(1, 8, 0)]).runs(90, 1, spec(8, 0), &[]).but(|other| other.preemptions = 1);
    assert_eq!(once.clone().with(1, trial(8, 0)).planned().victims, []);
    let twice = once.settings(|settings| settings.max_preemptions = 2);
    assert_eq!(victims(&twice.with(1, trial(8, 0)).planned()), [job(90)]);
}

#[test]
fn where_one_is_not_enough_several_on_one_node_go_and_no_more_than_needed() {
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0)])
        .runs(90, 1, spec(1, 0), &[])
        .runs(91, 1, spec(3, 0), &[])
        .runs(92, 1, spec(4, 0), &[])
        .runs(93, 2, trial(8, 0), &[]);
    assert_eq!(victims(&view.clone().with(1, trial(7, 0)).planned()), [job(91), job(92)]);
    assert_eq!(victims(&view.with(1, trial(8, 0)).planned()), [job(90), job(91), job(92)]);
}

#[test]
fn nobody_is_asked_to_end_if_the_trial_could_not_start_all_the_same() {
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0)])
        .runs(90, 1, spec(8, 0), &[])
        .runs(91, 2, trial(8, 0), &[])
        .with(1, gang(2, trial(8, 0)));
    let plan = view.planned();
    assert_eq!((victims(&plan), why(&plan, 1)), (vec![], Some(Why::NoRoom)));
}

#[test]
fn what_a_victim_leaves_is_promised_once() {
    let mut view = mesh([offer(1, 8, 0), offer(2, 8, 0)])
        .runs(90, 1, spec(8, 0), &[])
        .runs(91, 2, spec(8, 0), &[])
        .with(1, trial(5, 0));
    let plan = view.planned();
    view.carry_out(&plan, 5);
    // Three of the eight are promised to nobody, and five are.
    let other = view.clone().with(2, trial(4, 0)).planned();
    assert_eq!((victims(&other), places(&other, 2)), (vec![job(91)], vec![2]));
    view = view.with(2, trial(3, 0));
    let second = view.planned();
    assert_eq!((victims(&second), places(&second, 2)), (vec![], vec![1]));
    view.carry_out(&second, 6);
    assert_eq!(
        victims(&view.with(3, trial(1, 0)).planned()),
        [job(91)],
        "nothing is left of the first"
    );
}

#[test]
fn a_victim_that_is_part_of_a_gang_takes_its_gang_with_it_and_costs_as_much() {
    let big = gang(2, spec(8, 0));
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0), offer(3, 8, 0)])
        .runs(90, 1, big.clone(), &[])
        .runs(90, 2, big, &[])
        .runs(91, 3, spec(8, 0), &[]);
    assert_eq!(victims(&view.clone().with(1, trial(8, 0)).planned()), [job(91)]);
    let plan = view.with(1, gang(2, trial(8, 0))).planned();
    assert_eq!((victims(&plan), plan.victims.len()), (vec![job(90)], 2), "enough for both");
    assert_eq!(plan.places.len(), 2);
}

#[test]
fn a_gang_uses_all_that_one_victim_leaves_before_it_asks_another() {
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0)])
        .runs(90, 1, spec(8, 0), &[])
        .runs(91, 2, spec(8, 0), &[])
        .with(1, gang(4, trial(2, 0)));
    assert_eq!(victims(&view.planned()).len(), 1);
}

#[test]
fn on_its_own_nodes_a_partys_work_is_not_preempted_by_guests() {
    let mut guest = waits(1, trial(8, 0));
    guest.party = party(2);
    let view = mesh([offer(1, 8, 0)]).runs(90, 1, spec(8, 0), &[]);
    assert_eq!(view.clone().waiting(guest.clone()).planned().victims, []);
    assert_eq!(victims(&view.clone().with(1, trial(8, 0)).planned()), [job(90)]);
    let theirs = view.but(|other| other.party = party(2));
    assert_eq!(victims(&theirs.waiting(guest).planned()), [job(90)]);
}

#[test]
fn a_drained_node_is_not_emptied_for_a_trial() {
    let mut view = mesh([offer(1, 8, 0)]).runs(90, 1, spec(8, 0), &[]).with(1, trial(8, 0));
    view.offers[0].drained = true;
    assert_eq!(view.planned().victims, []);
}

#[test]
fn a_trial_over_its_partys_quota_preempts_nobody() {
    let mut view = mesh([offer(1, 8, 0)]).runs(90, 1, spec(8, 0), &[]).with(1, trial(8, 0));
    view.parties[0].quota = Some(Quota { cpu_milli: Some(8000), gpus: None });
    let plan = view.planned();
    assert_eq!((victims(&plan), why(&plan, 1)), (vec![], Some(Why::Quota)));
}

#[test]
fn a_trial_that_has_waited_too_long_keeps_later_ones_from_its_place() {
    let mut old = waits(1, trial(8, 0));
    old.submitted = Time(0);
    let view = mesh([offer(1, 8, 0)]).runs(90, 1, trial(4, 0), &[]).waiting(old);
    let plan = view.with(2, trial(4, 0)).planned();
    assert_eq!((why(&plan, 1), why(&plan, 2)), (Some(Why::Reserved), Some(Why::NoRoom)));
}

#[test]
fn with_the_plan_nearly_full_a_gang_that_needs_victims_waits_for_the_next() {
    let mut view =
        mesh([offer(1, 8, 0), offer(2, 8, 0)]).settings(|settings| settings.max_changes = 3);
    view = view.runs(90, 1, spec(8, 0), &[]).runs(91, 2, spec(6, 0), &[]);
    let mut urgent = trial(2, 0);
    urgent.priority = 99;
    view = view.with(1, urgent).with(2, gang(2, trial(4, 0)));
    let plan = view.planned();
    assert_eq!((places(&plan, 1), why(&plan, 2), plan.more), (vec![2], Some(Why::NextPlan), true));
    view.carry_out(&plan, 5);
    assert_eq!(view.planned().places.len(), 2);
}
