//! Which node, and how much of it.

use super::scene::*;
use crate::job::{Image, Range};
use crate::scheduler::*;

#[test]
fn when_nothing_waits_nothing_is_planned() {
    assert_eq!(mesh([offer(1, 8, 0)]).planned(), Plan::default());
}

#[test]
fn a_job_goes_to_the_fullest_node_that_fits_so_that_whole_nodes_stay_whole() {
    let view = mesh([offer(1, 32, 8), offer(2, 32, 8), offer(3, 32, 8)])
        .runs(90, 2, spec(1, 4), &[0, 1, 2, 3])
        .runs(91, 3, spec(1, 6), &[0, 1, 2, 3, 4, 5]);
    assert_eq!(view.clone().with(1, spec(1, 2)).places(1), [3], "which it fills");
    assert_eq!(view.clone().with(1, spec(1, 3)).places(1), [2]);
    assert_eq!(view.with(1, spec(1, 8)).places(1), [1]);
}

#[test]
fn of_two_nodes_that_are_alike_the_lower_id_is_taken() {
    assert_eq!(mesh([offer(2, 8, 0), offer(1, 8, 0)]).with(1, spec(1, 0)).places(1), [1]);
}

#[test]
fn a_job_without_gpus_leaves_gpu_nodes_alone_while_there_are_others() {
    let view = mesh([offer(1, 8, 8), offer(2, 64, 0)]);
    assert_eq!(view.clone().with(1, spec(4, 0)).places(1), [2]);
    let busy = view.runs(90, 2, spec(64, 0), &[]);
    assert_eq!(busy.with(1, spec(4, 0)).places(1), [1]);
}

#[test]
fn of_gpu_nodes_a_job_without_gpus_takes_one_whose_gpus_are_busy() {
    let view =
        mesh([offer(1, 32, 8), offer(2, 32, 8)]).runs(90, 2, spec(1, 8), &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(view.with(1, spec(4, 0)).places(1), [2]);
}

#[test]
fn data_that_is_there_outweighs_how_full_a_node_is() {
    let mut near = offer(2, 32, 0);
    near.versions.insert(version(7));
    let view = mesh([offer(1, 8, 0), near]).with(1, reads(spec(1, 0), 7, 10 * GIB));
    assert_eq!(view.places(1), [2]);
}

#[test]
fn the_fewest_bytes_to_fetch_win_and_a_few_bytes_are_none() {
    let mut one = offer(1, 8, 0);
    one.versions.insert(version(1));
    let mut two = offer(2, 8, 0);
    two.versions.insert(version(2));
    let both = reads(reads(spec(1, 0), 1, GIB), 2, 30 * GIB);
    assert_eq!(mesh([one, two]).with(1, both.clone()).places(1), [2]);
    let offers = [offer(1, 8, 0), offer(2, 8, 0)];
    assert_eq!(bytes_to_fetch(&both, &offers[0]), 31 * GIB);
}

#[test]
fn an_image_that_is_there_is_worth_a_node() {
    let mut job = spec(1, 0);
    job.groups[0].image = Some(Image::Named("python:3.12".into()));
    let mut has = offer(2, 32, 0);
    has.images.insert("python:3.12".into());
    assert_eq!(mesh([offer(1, 8, 0), has]).with(1, job.clone()).places(1), [2]);
    let mut bare = offer(1, 8, 0);
    bare.docker = false;
    assert_eq!(mesh([bare]).with(1, job).places(1), [] as [u8; 0], "no Docker, no container");
}

#[test]
fn a_task_is_given_gpus_by_name_and_no_two_have_the_same() {
    let mut view =
        mesh([offer(1, 32, 4)]).with(1, spec(1, 3)).with(2, spec(1, 1)).with(3, spec(1, 1));
    let plan = view.planned();
    let mut given: Vec<[u8; 16]> =
        plan.places.iter().flat_map(|place| place.allotment.gpus.clone()).collect();
    given.sort();
    assert_eq!(given, [uuid(1, 0), uuid(1, 1), uuid(1, 2), uuid(1, 3)]);
    assert_eq!(why(&plan, 3), Some(Why::NoRoom));
    view.carry_out(&plan, 5);
    assert_eq!(view.planned().places, []);
}

#[test]
fn gpus_must_be_of_the_kind_that_was_asked_for() {
    let mut old = offer(1, 32, 2);
    old.gpus
        .iter_mut()
        .for_each(|gpu| (gpu.model, gpu.memory_mib) = ("tesla p40".into(), 24 << 10));
    let mut sliced = offer(3, 32, 2);
    sliced.gpus.iter_mut().for_each(|gpu| {
        (gpu.mig, gpu.memory_mib) = (Some("1g.5gb".into()), 5 << 10);
    });
    let view = mesh([old, offer(2, 32, 8), sliced]);
    let with = |change: fn(&mut crate::job::GpuAsk)| {
        let mut job = spec(1, 1);
        change(job.groups[0].resources.gpus.as_mut().unwrap());
        view.clone().with(1, job).places(1)
    };
    assert_eq!(with(|_| ()), [1], "a part is no GPU, and the small node is the fuller one");
    assert_eq!(with(|ask| ask.models = vec!["h100".into(), "a100".into()]), [2]);
    assert_eq!(with(|ask| ask.min_memory_mib = 40 << 10), [2]);
    assert_eq!(with(|ask| ask.max_memory_mib = Some(40 << 10)), [1]);
    assert_eq!(with(|ask| ask.mig = Some("1g.5gb".into())), [3]);
    assert_eq!(with(|ask| ask.models = vec!["h100".into()]), [] as [u8; 0]);
}

#[test]
fn a_broken_gpu_and_one_that_others_use_are_not_given_away() {
    let mut sick = offer(1, 32, 4);
    sick.gpus[0].healthy = false;
    sick.gpus[1].free = false;
    let plan = mesh([sick.clone()]).with(1, spec(1, 2)).planned();
    assert_eq!(plan.places[0].allotment.gpus, [uuid(1, 2), uuid(1, 3)]);
    assert_eq!(mesh([sick]).with(1, spec(1, 3)).places(1), [] as [u8; 0]);
}

#[test]
fn labels_architecture_names_and_parties_say_which_nodes_will_do() {
    let mut arm = offer(2, 8, 0);
    arm.arch = "aarch64".into();
    arm.labels.insert(name("site"), "north".parse().unwrap());
    let mut theirs = offer(3, 8, 0);
    theirs.party = party(2);
    let mut closed = offer(4, 8, 0);
    (closed.party, closed.takes_others) = (party(3), false);
    let view = mesh([offer(1, 8, 0), arm, theirs, closed]);
    let with = |change: fn(&mut crate::job::Place)| {
        let mut job = spec(1, 0);
        change(&mut job.place);
        view.clone().with(1, job).places(1)
    };
    assert_eq!(with(|place| place.arch = Some("aarch64".into())), [2]);
    assert_eq!(
        with(|place| drop(place.labels.insert(name("site"), "north".parse().unwrap()))),
        [2]
    );
    assert_eq!(
        with(|place| drop(place.labels.insert(name("site"), "south".parse().unwrap()))),
        [] as [u8; 0]
    );
    assert_eq!(with(|place| place.nodes.extend([name("n3")])), [3]);
    assert_eq!(with(|place| place.party = Some(name("p2"))), [3]);
    assert_eq!(
        with(|place| place.party = Some(name("p3"))),
        [] as [u8; 0],
        "it takes its own work alone"
    );
    assert_eq!(with(|place| place.party = Some(name("nobody"))), [] as [u8; 0]);
}

/// A node of a party that trains for party 1, if it says so, and takes nobody's other work.
fn of_party(n: u8, owner: u8, trains: bool) -> Offer {
    let mut offer = offer(n, 8, 0);
    (offer.party, offer.takes_others) = (party(owner), false);
    offer.trains_for.extend(trains.then(|| party(1)));
    offer
}

#[test]
fn a_task_of_a_party_goes_to_that_partys_nodes_only() {
    let view = mesh([of_party(1, 1, false), of_party(2, 2, true), of_party(3, 3, true)]);
    assert_eq!(view.clone().with(1, trains(&[1, 2, 3], spec(1, 0))).places(1), [1, 2, 3]);
    assert_eq!(view.clone().with(1, trains(&[3, 1], spec(1, 0))).places(1), [3, 1]);
    // Also where its own nodes have no room, and others have.
    let busy = view.clone().runs(90, 2, trial(8, 0), &[]);
    assert_eq!(busy.with(1, trains(&[2, 3], spec(1, 0))).places(1), [3]);
    assert_eq!(view.with(1, trains(&[9], spec(1, 0))).places(1), [] as [u8; 0], "nobody's name");
}

#[test]
fn a_node_trains_for_another_party_only_if_it_says_so() {
    let mut willing = of_party(2, 2, false);
    willing.takes_others = true;
    let view = mesh([of_party(1, 1, false), willing]);
    // Taking others' work is another matter.
    assert_eq!(view.clone().with(1, trains(&[1, 2], spec(1, 0))).places(1), [1]);
    assert_eq!(view.with(1, tasks(16, spec(1, 0))).planned().places.len(), 16);
    let view = mesh([of_party(1, 1, false), of_party(2, 2, true)]);
    assert_eq!(view.clone().with(1, trains(&[1, 2], spec(1, 0))).places(1), [1, 2]);
    // And the other way round.
    assert_eq!(view.with(1, tasks(16, spec(1, 0))).planned().places.len(), 8);
}

#[test]
fn what_is_confined_to_a_party_stays_on_its_nodes() {
    let mut theirs = offer(1, 8, 0);
    theirs.party = party(2);
    let mut waiting = waits(1, spec(1, 0));
    waiting.confined = Some(party(1));
    assert_eq!(mesh([theirs.clone()]).waiting(waiting.clone()).places(1), [] as [u8; 0]);
    assert_eq!(mesh([theirs, offer(2, 8, 0)]).waiting(waiting).places(1), [2]);
}

#[test]
fn a_drained_node_and_one_that_is_away_are_given_nothing() {
    let mut drained = offer(1, 8, 0);
    drained.drained = true;
    let mut away = offer(2, 8, 0);
    away.away = Some(seconds(5));
    let plan = mesh([drained, away]).with(1, spec(1, 0)).planned();
    assert_eq!(why(&plan, 1), Some(Why::NoNode));
}

#[test]
fn a_task_is_lost_when_its_node_has_been_away_for_long_and_not_before() {
    let mut away = offer(1, 8, 0);
    away.away = Some(seconds(20));
    let view = mesh([away, offer(2, 8, 0)]).runs(1, 1, spec(1, 0), &[]);
    let plan = view.planned();
    assert_eq!(plan.lost, []);
    assert_eq!(plan.again_at, Some(NOW.after(seconds(40))));
    let mut view = view;
    view.offers[0].away = Some(seconds(60));
    assert_eq!(view.planned().lost, [Lost { job: job(1), task: 0, fence: 1001 }]);
    view.offers.remove(0);
    assert_eq!(view.planned().lost, [], "of what is not in the view, nothing is decided");
}

#[test]
fn a_node_on_which_a_job_failed_twice_is_its_last_choice_and_after_three_times_none() {
    let mut waiting = waits(1, spec(1, 0));
    waiting.failures.insert(node(1), 1);
    let both = || mesh([offer(1, 8, 0), offer(2, 32, 0)]);
    assert_eq!(both().waiting(waiting.clone()).places(1), [1]);
    waiting.failures.insert(node(1), 2);
    assert_eq!(both().waiting(waiting.clone()).places(1), [2]);
    let full = both().runs(90, 2, spec(32, 0), &[]);
    assert_eq!(full.clone().waiting(waiting.clone()).places(1), [1], "as a last choice");
    waiting.failures.insert(node(1), 3);
    assert_eq!(full.waiting(waiting.clone()).places(1), [] as [u8; 0], "it rather waits");
    assert_eq!(mesh([offer(1, 8, 0)]).waiting(waiting).places(1), [1], "where else should it run");
}

#[test]
fn a_job_in_its_pause_after_a_failure_waits_and_holds_nobody_up() {
    let mut waiting = waits(1, spec(1, 0));
    waiting.not_before = NOW.after(seconds(7));
    let plan = mesh([offer(1, 8, 0)]).waiting(waiting).with(2, spec(8, 0)).planned();
    assert_eq!(why(&plan, 1), Some(Why::NotBefore(NOW.after(seconds(7)))));
    assert_eq!(places(&plan, 2), [1]);
    assert_eq!(plan.again_at, Some(NOW.after(seconds(7))));
}

#[test]
fn a_gang_is_placed_whole_or_not_at_all() {
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0)]);
    let mut spots = view.clone().with(1, gang(4, spec(4, 0))).places(1);
    spots.sort();
    assert_eq!(spots, [1, 1, 2, 2]);
    assert_eq!(view.clone().with(1, gang(5, spec(4, 0))).places(1), [] as [u8; 0]);
    assert_eq!(view.with(1, tasks(5, spec(4, 0))).places(1).len(), 4, "others as many as fit");
}

#[test]
fn a_gang_of_which_tasks_have_not_ended_yet_is_left_alone() {
    let mut waiting = waits(1, gang(2, spec(1, 0)));
    waiting.tasks = vec![1];
    assert_eq!(why(&mesh([offer(1, 8, 0)]).waiting(waiting).planned(), 1), Some(Why::Ending));
}

#[test]
fn a_gang_of_two_kinds_places_those_that_need_most_first() {
    let mut job = gang(2, spec(2, 1));
    let mut ps = spec(6, 0).groups.remove(0);
    (ps.name, ps.count) = (name("ps"), 1);
    // The servers come first in the file, and would fill the GPU node.
    job.groups.insert(0, ps);
    let plan = mesh([offer(1, 8, 2), offer(2, 6, 0)]).with(1, job).planned();
    assert_eq!(places(&plan, 1), [2, 1, 1]);
}

#[test]
fn tasks_are_spread_over_domains_and_over_labels_where_asked() {
    let in_domain = |n, domain: &str| {
        let mut offer = offer(n, 32, 0);
        offer.domain = Some(name(domain));
        offer.labels.insert(name("rack"), domain.to_uppercase().parse().unwrap());
        offer
    };
    let view = mesh([in_domain(1, "a"), in_domain(2, "a"), in_domain(3, "b"), in_domain(4, "c")]);
    for over in ["domain", "rack"] {
        let mut job = tasks(3, spec(1, 0));
        job.place.spread = Some(name(over));
        let mut spots = view.clone().with(1, job).places(1);
        spots.sort();
        assert_eq!(spots, [1, 3, 4], "over {over}");
    }
    let mut job = tasks(4, spec(1, 0));
    job.place.spread = Some(name("node"));
    let mut spots = view.clone().with(1, job.clone()).places(1);
    spots.sort();
    assert_eq!(spots, [1, 2, 3, 4]);
    let mut waiting = waits(1, job);
    (waiting.tasks, waiting.others) = (vec![3], vec![node(1), node(2), node(4)]);
    assert_eq!(view.waiting(waiting).places(1), [3], "those that run count");
}

#[test]
fn packed_tasks_take_as_few_nodes_as_can_be() {
    let view = mesh([offer(1, 2, 0), offer(2, 4, 0), offer(3, 16, 0)]);
    let mut job = tasks(4, spec(1, 0));
    job.place.pack = true;
    assert_eq!(
        view.clone().with(1, job.clone()).places(1),
        [2, 2, 2, 2],
        "the fullest that takes all"
    );
    job.groups[0].count = 18;
    let mut spots = view.with(1, job).places(1);
    spots.dedup();
    assert_eq!(spots.len(), 2);
}

#[test]
fn each_means_one_on_every_node_that_will_do_and_has_room() {
    let mut other = offer(3, 8, 0);
    other.arch = "aarch64".into();
    let view =
        mesh([offer(1, 8, 0), offer(2, 8, 0), other, offer(4, 8, 0)]).runs(90, 4, spec(8, 0), &[]);
    let mut job = spec(1, 0);
    (job.place.each, job.place.arch) = (true, Some("x86_64".into()));
    assert_eq!(view.clone().with(1, job.clone()).places(1), [1, 2]);
    job.gang = true;
    assert_eq!(
        why(&view.clone().with(1, job).planned(), 1),
        Some(Why::NoRoom),
        "together on all, or none"
    );
    let mut impossible = spec(99, 0);
    impossible.place.each = true;
    assert_eq!(why(&view.with(1, impossible).planned(), 1), Some(Why::NoNode));
}

#[test]
fn a_task_gets_the_least_it_asks_for_and_more_if_nobody_waits_for_it() {
    let mut wide = spec(1, 1);
    wide.groups[0].resources.cpu_milli = Some(Range { min: 1000, max: 6000 });
    wide.groups[0].resources.gpus.as_mut().unwrap().count = Range { min: 1, max: 4 };
    let view = mesh([offer(1, 8, 8)]).with(1, wide.clone());
    let got = view.planned().places[0].allotment.clone();
    assert_eq!((got.cpu_milli, got.gpus.len()), (6000, 4));
    let two = view.clone().with(2, wide.clone()).planned();
    let gpus: Vec<usize> = two.places.iter().map(|place| place.allotment.gpus.len()).collect();
    assert_eq!(gpus, [4, 4]);
    let cpus: Vec<u64> = two.places.iter().map(|place| place.allotment.cpu_milli).collect();
    assert_eq!(cpus, [6000, 2000], "who comes first");
    let awaited = view.clone().with(2, spec(1, 8)).planned();
    assert_eq!(awaited.places[0].allotment.gpus.len(), 1, "somebody waits for the others");
}

#[test]
fn tasks_of_a_gang_grow_alike() {
    let mut wide = gang(2, spec(1, 1));
    wide.groups[0].resources.gpus.as_mut().unwrap().count = Range { min: 1, max: 8 };
    wide.place.spread = Some(name("node"));
    let view = mesh([offer(1, 8, 8), offer(2, 8, 3)]).with(1, wide);
    let gpus: Vec<usize> =
        view.planned().places.iter().map(|place| place.allotment.gpus.len()).collect();
    assert_eq!(gpus, [3, 3]);
}

#[test]
fn two_tasks_that_want_one_port_do_not_share_a_node() {
    let mut job = tasks(2, spec(1, 0));
    job.groups[0].ports.insert(name("http"), Some(8080));
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0)]);
    let mut spots = view.clone().with(1, job.clone()).places(1);
    spots.sort();
    assert_eq!(spots, [1, 2]);
    let taken = view.runs(90, 1, spec(1, 0), &[]).but(|other| other.ports = vec![8080]);
    assert_eq!(taken.with(1, job).places(1), [2]);
}

#[test]
fn a_plan_has_a_bound_and_says_that_there_is_more() {
    let mut view = mesh([offer(1, 64, 0)]).settings(|settings| settings.max_changes = 4);
    for n in 1..=6 {
        view = view.with(n, spec(1, 0));
    }
    view = view.with(7, gang(3, spec(1, 0)));
    let plan = view.planned();
    assert_eq!((plan.places.len(), plan.more), (4, true));
    view.carry_out(&plan, 5);
    let plan = view.planned();
    assert_eq!((plan.places.len(), plan.more), (2, true), "a gang is not cut in two");
    view.carry_out(&plan, 6);
    let plan = view.planned();
    assert_eq!((plan.places.len(), plan.more), (3, false));
}
