//! Who comes before whom, and who may be overtaken.

use super::scene::*;
use crate::scheduler::*;

/// One node on which one of them fits.
fn one_place() -> View {
    mesh([offer(1, 8, 0)])
}

#[test]
fn trial_comes_before_best_effort_priority_before_age_and_age_before_the_rest() {
    let mut urgent = spec(8, 0);
    urgent.priority = 60;
    let view =
        one_place().with(1, spec(8, 0)).with(2, spec(8, 0)).with(3, urgent).with(4, trial(8, 0));
    let order = |view: &View| view.planned().left.iter().map(|left| left.job).collect::<Vec<_>>();
    assert_eq!(order(&view), [job(3), job(1), job(2)]);
    assert_eq!(view.places(4), [1]);
}

#[test]
fn parties_take_turns_by_what_they_have_used_for_their_weight() {
    let mut view = one_place();
    for (n, of) in [(1, 1), (2, 1), (3, 2)] {
        let mut waiting = waits(n, spec(8, 0));
        waiting.party = party(of);
        view = view.waiting(waiting);
    }
    view.parties[0].usage = usage(1000);
    assert_eq!(view.places(3), [1], "party 2 has used nothing");
    view.parties[1].usage = usage(1500);
    assert_eq!(view.places(1), [1]);
    view.parties[1].weight = 2;
    assert_eq!(view.places(3), [1], "750 for a weight of one");
}

#[test]
fn a_burst_of_one_party_does_not_win_because_each_placement_counts_in_advance() {
    let mut view = mesh([offer(1, 8, 0)]);
    for n in 1..=20 {
        let mut waiting = waits(n, spec(1, 0));
        waiting.party = party(if n <= 16 { 1 } else { 2 });
        view = view.waiting(waiting);
    }
    let plan = view.planned();
    let of_two = (17..=20).filter(|n| places(&plan, *n) == [1]).count();
    assert_eq!((plan.places.len(), of_two), (8, 4));
}

#[test]
fn what_runs_counts_for_whose_turn_it_is() {
    let mut late = waits(2, spec(4, 0));
    late.party = party(2);
    let view = one_place().runs(90, 1, spec(4, 0), &[]).with(1, spec(4, 0)).waiting(late);
    assert_eq!(view.places(2), [1], "party 1 has used a node for an hour");
}

#[test]
fn who_was_interrupted_goes_before_all_others_of_its_kind() {
    let mut back = waits(9, spec(8, 0));
    back.interrupted = true;
    let mut view = one_place().with(1, spec(8, 0)).waiting(back);
    view.parties[0].usage = usage(1 << 40);
    let mut other = waits(2, spec(8, 0));
    other.party = party(2);
    view = view.waiting(other);
    assert_eq!(view.places(9), [1]);
    assert_eq!(view.with(3, trial(8, 0)).places(3), [1], "but not before a trial");
}

#[test]
fn a_quota_holds_back_its_party_and_nobody_else() {
    let mut view = mesh([offer(1, 32, 8)]).runs(90, 1, spec(1, 0), &[0, 1]);
    view.parties[0].quota = Some(Quota { cpu_milli: None, gpus: Some(3) });
    let mut other = waits(4, spec(1, 4));
    other.party = party(2);
    let plan = view
        .clone()
        .with(1, spec(1, 2))
        .with(2, spec(1, 1))
        .with(3, spec(1, 1))
        .waiting(other)
        .planned();
    assert_eq!(why(&plan, 1), Some(Why::Quota));
    assert_eq!(places(&plan, 2), [1]);
    assert_eq!(why(&plan, 3), Some(Why::Quota));
    assert_eq!(places(&plan, 4), [1]);
    let plan = view.with(1, gang(2, spec(1, 1))).planned();
    assert_eq!(why(&plan, 1), Some(Why::Quota), "a gang counts as a whole");
}

#[test]
fn a_job_that_does_not_fit_lets_others_pass_for_a_while() {
    let view =
        mesh([offer(1, 8, 0)]).runs(90, 1, spec(4, 0), &[]).with(1, spec(8, 0)).with(2, spec(4, 0));
    let plan = view.planned();
    assert_eq!(why(&plan, 1), Some(Why::NoRoom));
    assert_eq!(places(&plan, 2), [1]);
    assert_eq!(plan.again_at, None);
}

#[test]
fn one_that_has_waited_too_long_lets_nobody_take_what_it_waits_for() {
    let mut old = waits(1, spec(8, 0));
    old.submitted = Time(NOW.0 - 301 * SECOND);
    let nodes = [offer(1, 8, 0), offer(2, 8, 0)];
    // What runs on node 2 has run for longer: the place is kept there.
    let view = mesh(nodes).runs(91, 1, spec(4, 0), &[]).runs(90, 2, spec(4, 0), &[]).waiting(old);
    let plan = view.clone().with(2, spec(4, 0)).with(3, spec(4, 0)).planned();
    assert_eq!(why(&plan, 1), Some(Why::Reserved));
    assert_eq!((places(&plan, 2), why(&plan, 3)), (vec![1], Some(Why::NoRoom)));
    let mut urgent = spec(4, 0);
    urgent.priority = 51;
    let plan = view.with(2, urgent).with(3, trial(4, 0)).planned();
    assert_eq!((places(&plan, 2).len(), places(&plan, 3).len()), (1, 1), "who comes before it may");
}

#[test]
fn others_may_have_what_the_one_that_waits_leaves() {
    let mut old = waits(1, spec(4, 8));
    old.submitted = Time(0);
    let view = mesh([offer(1, 32, 8)]).runs(90, 1, spec(1, 2), &[0, 1]).waiting(old);
    let plan = view.clone().with(2, spec(27, 0)).with(3, spec(1, 1)).planned();
    assert_eq!(places(&plan, 2), [1], "31 are free, and one comes back: 28 are left over");
    assert_eq!(why(&plan, 3), Some(Why::NoRoom), "all GPUs are kept");
    assert_eq!(why(&view.with(2, spec(29, 0)).planned(), 2), Some(Why::NoRoom));
}

#[test]
fn a_place_is_kept_for_a_gang_on_several_nodes() {
    let mut old = waits(1, gang(2, spec(8, 0)));
    old.submitted = Time(0);
    let nodes = [offer(1, 8, 0), offer(2, 8, 0), offer(3, 8, 0)];
    let view = mesh(nodes).runs(90, 1, spec(8, 0), &[]).runs(91, 2, spec(4, 0), &[]).runs(
        92,
        3,
        spec(4, 0),
        &[],
    );
    let plan = view.waiting(old).with(2, spec(4, 0)).with(3, spec(4, 0)).planned();
    assert_eq!(why(&plan, 1), Some(Why::Reserved));
    assert_eq!(
        (places(&plan, 2), why(&plan, 3)),
        (vec![3], Some(Why::NoRoom)),
        "1 and 2 began first"
    );
}

#[test]
fn what_no_node_can_run_holds_nobody_up() {
    let mut never = waits(1, spec(99, 0));
    never.submitted = Time(0);
    let mut label = waits(2, spec(1, 0));
    label.submitted = Time(0);
    let mut nowhere = (*label.spec).clone();
    nowhere.place.labels.insert(name("site"), "moon".parse().unwrap());
    label.spec = nowhere.into();
    let mut torn = waits(3, gang(3, spec(8, 0)));
    torn.submitted = Time(0);
    for backfill in [true, false] {
        let view = mesh([offer(1, 8, 0), offer(2, 8, 0)])
            .settings(|settings| settings.backfill = backfill);
        let view = view.waiting(never.clone()).waiting(label.clone()).waiting(torn.clone());
        let plan = view.with(4, spec(8, 0)).planned();
        assert_eq!(places(&plan, 4), [1]);
        for n in 1..=3 {
            assert_eq!(why(&plan, n), Some(Why::NoNode), "{n}");
        }
    }
}

#[test]
fn in_strict_order_nobody_passes_one_that_could_run_and_has_no_room() {
    let view = mesh([offer(1, 8, 0)]).settings(|settings| settings.backfill = false);
    let view = view.runs(90, 1, spec(4, 0), &[]).with(1, spec(8, 0)).with(2, spec(1, 0));
    let plan = view.planned();
    assert_eq!(plan.places, []);
    assert_eq!(plan.left, [Left { job: job(1), why: Why::NoRoom }]);
}

#[test]
fn a_few_places_are_kept_and_not_for_everybody() {
    let mut view = mesh([offer(1, 8, 0), offer(2, 8, 0), offer(3, 8, 0)])
        .settings(|settings| settings.reservations = 1);
    for n in [1, 2, 3] {
        view = view.runs(90 + n, n as u8, spec(4, 0), &[]);
    }
    for n in [1, 2] {
        let mut old = waits(n, spec(8, 0));
        old.submitted = Time(0);
        view = view.waiting(old);
    }
    let plan = view.with(3, tasks(3, spec(4, 0))).planned();
    assert_eq!((why(&plan, 1), why(&plan, 2)), (Some(Why::Reserved), Some(Why::NoRoom)));
    let mut spots = places(&plan, 3);
    spots.sort();
    assert_eq!(spots, [2, 3]);
}
