//! What a job that waits is told.

use super::scene::*;
use crate::scheduler::explain::Help;
use crate::scheduler::*;

fn notes(explanation: &Explanation) -> Vec<String> {
    let text = |note: &explain::NodeNote| match &note.why {
        Some(why) => format!("{}: {why}", note.name),
        None => format!("{}: has room", note.name),
    };
    explanation.nodes.iter().map(text).collect()
}

#[test]
fn each_node_says_why_not_in_words_and_figures() {
    let mut arm = offer(3, 32, 8);
    arm.arch = "aarch64".into();
    let mut drained = offer(4, 32, 8);
    drained.drained = true;
    let mut away = offer(5, 32, 8);
    away.away = Some(seconds(40));
    let mut closed = offer(6, 32, 8);
    (closed.party, closed.takes_others) = (party(2), false);
    let mut job_spec = spec(4, 8);
    job_spec.place.arch = Some("x86_64".into());
    let view =
        mesh([offer(1, 32, 8), offer(2, 32, 0), arm, drained, away, closed, offer(7, 32, 4)])
            .runs(90, 1, spec(1, 4), &[0, 1, 2, 3])
            .with(1, job_spec);
    let explanation = explain(&view, job(1)).unwrap();
    assert_eq!(
        notes(&explanation),
        [
            "n1: 4 of 8 GPUs free, wants 8",
            "n2: has no GPU, wants 8",
            "n3: is aarch64, wants x86_64",
            "n4: is drained",
            "n5: has not been heard of for 40 s",
            "n6: takes the work of its own party alone",
            "n7: has 4 GPUs, wants 8",
        ]
    );
    assert_eq!(explanation.why, Some(Why::NoRoom));
    assert!(!explanation.impossible);
    let help: Vec<String> = explanation.help.iter().map(Help::to_string).collect();
    assert_eq!(
        help,
        [
            "that n4 is no longer drained",
            "that n5 comes back",
            &format!("that job {} ends", job(90).short())
        ]
    );
}

#[test]
fn memory_and_labels_are_told_as_people_write_them() {
    let mut big = spec(1, 0);
    big.groups[0].resources.memory_bytes = Some(crate::job::Range::just(80 * GIB));
    big.place.labels.insert(name("site"), "north".parse().unwrap());
    let mut north = offer(2, 10, 0);
    north.labels.insert(name("site"), "north".parse().unwrap());
    north.memory_bytes = 96 * GIB;
    let mut south = offer(3, 10, 0);
    south.labels.insert(name("site"), "south".parse().unwrap());
    let mut small = north.clone();
    (small.node, small.name, small.memory_bytes) = (node(4), name("n4"), 63 * GIB + GIB / 2);
    let mut job = spec(1, 0);
    job.groups[0].resources.memory_bytes = Some(crate::job::Range::just(20 * GIB));
    let view = mesh([offer(1, 10, 0), north, south, small]).runs(90, 2, job, &[]).with(1, big);
    assert_eq!(
        notes(&explain(&view, super::scene::job(1)).unwrap()),
        [
            "n1: lacks the label site=north",
            "n2: 76 GiB of 96 GiB of memory free, wants 80 GiB",
            "n3: has the label site=south, wants site=north",
            "n4: has 63.5 GiB of memory, wants 80 GiB",
        ]
    );
}

#[test]
fn what_no_member_could_ever_run_is_impossible_and_names_the_closest() {
    let mut away = offer(2, 16, 4);
    away.away = Some(seconds(100));
    let view = mesh([offer(1, 8, 8), away]);
    assert!(!is_impossible(&view.clone().with(1, spec(16, 4)), job(1)), "node 2 may come back");
    let view = view.with(1, spec(16, 8));
    let explanation = explain(&view, job(1)).unwrap();
    assert!(explanation.impossible && is_impossible(&view, job(1)));
    let closest = explanation.closest.unwrap();
    assert_eq!(closest.node, node(1));
    let lacks: Vec<String> = closest.lacks.iter().map(Reason::to_string).collect();
    assert_eq!(lacks, ["has 8 CPUs, wants 16"]);
    assert_eq!(explanation.help, [Help::Add("8 GPUs, 16 CPUs, 1 GiB of memory".into())]);
}

#[test]
fn a_party_that_does_not_train_for_the_job_is_told_how_it_could() {
    let mut theirs = offer(2, 8, 0);
    theirs.party = party(2);
    let view = mesh([offer(1, 8, 0), theirs.clone()]);
    let explained = explain(&view.clone().with(1, trains(&[1, 2], spec(1, 0))), job(1)).unwrap();
    assert_eq!(
        notes(&explained),
        ["n1: is not a node of p2", "n2: does not train for p1 (mesh node label n2 trains=p1)"]
    );
    assert!(!explained.impossible, "party 1 can begin");
    assert_eq!(explained.places.len(), 1);
    let help: Vec<String> = explained.help.iter().map(Help::to_string).collect();
    assert_eq!(help, ["that n2 trains for it: mesh node label n2 trains=p1"]);

    // With fewer than it asks for it gets nowhere.
    let mut both = trains(&[1, 2], spec(1, 0));
    if let Some(crate::job::training::Training::Federated(federated)) = &mut both.training {
        federated.min_parties = 2;
    }
    let explained = explain(&view.with(1, both.clone()), job(1)).unwrap();
    assert!(explained.impossible);
    assert_eq!(explained.closest.map(|closest| closest.node), Some(node(2)));
    assert_eq!(explained.help, [Help::Train(name("n2"), name("p1"))]);
    theirs.trains_for.insert(party(1));
    assert!(!is_impossible(&mesh([offer(1, 8, 0), theirs]).with(1, both), job(1)));
}

#[test]
fn a_gang_that_is_too_large_for_the_whole_mesh_is_impossible() {
    let view = mesh([offer(1, 8, 0), offer(2, 8, 0)]).runs(90, 1, spec(8, 0), &[]);
    assert!(!is_impossible(&view.clone().with(1, gang(4, spec(4, 0))), job(1)));
    assert!(is_impossible(&view.with(1, gang(5, spec(4, 0))), job(1)));
}

#[test]
fn what_is_beyond_its_partys_quota_is_impossible() {
    let mut view = mesh([offer(1, 8, 8)]).with(1, spec(1, 4));
    view.parties[0].quota = Some(Quota { cpu_milli: None, gpus: Some(3) });
    let explanation = explain(&view, job(1)).unwrap();
    assert!(explanation.impossible);
    assert_eq!(explanation.why, Some(Why::Quota));
}

#[test]
fn who_is_ahead_is_told_in_order() {
    let view = mesh([offer(1, 8, 0)]).with(1, spec(8, 0)).with(2, spec(8, 0)).with(3, trial(8, 0));
    let explanation = explain(&view, job(2)).unwrap();
    assert_eq!(explanation.ahead, [job(3), job(1)]);
    assert_eq!(notes(&explanation), ["n1: 0 of 8 CPUs free, wants 8"]);
}

#[test]
fn a_job_that_can_start_is_told_where_and_at_whose_cost() {
    let view = mesh([offer(1, 8, 0)]).runs(90, 1, spec(8, 0), &[]).with(1, trial(8, 0));
    let explanation = explain(&view, job(1)).unwrap();
    assert_eq!(explanation.why, None);
    assert_eq!((explanation.places.len(), explanation.victims.len()), (1, 1));
    assert_eq!(explain(&view, job(2)), None);
}

#[test]
fn that_room_is_kept_for_another_is_told() {
    let mut old = waits(1, spec(8, 0));
    old.submitted = Time(0);
    let view = mesh([offer(1, 8, 0)]).runs(90, 1, spec(4, 0), &[]).waiting(old).with(2, spec(4, 0));
    let explanation = explain(&view, job(2)).unwrap();
    assert_eq!(explanation.nodes[0].why, Some(Reason::HeldFor(job(1))));
    assert_eq!(explain(&view, job(1)).unwrap().why, Some(Why::Reserved));
}
