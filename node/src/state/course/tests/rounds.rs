//! Which rounds and models can come next.

use super::*;

#[test]
fn a_round_is_opened_again_with_other_aggregators() {
    let mut scene = under_way(3);
    wait(&mut scene, 50);
    let other = Open { aggregators: vec![id(4)], selected: BTreeSet::from([1, 2]), ..open(1) };
    commit(&mut scene, 1, None, vec![], Some(other.clone())).unwrap();
    assert_eq!(course(&scene).open, Some(Open { since: scene.time, ..other }));
    assert_eq!(course(&scene).model.as_ref().unwrap().round, 0);
    assert_eq!(course(&scene).curve.len(), 1);
    full_round(&mut scene, 1, 3);
}

#[test]
fn a_round_that_cannot_come_next_is_refused() {
    let scene = under_way(3);
    let counted = vec![taken(&scene, 0, 2, 0), taken(&scene, 1, 2, 0)];
    let good = round(&scene, Some(model(1)), counted, Some(open(2)));
    let wrong: [fn(&mut CourseRound); 35] = [
        // The model.
        |act| act.model.as_mut().unwrap().round = 0,
        |act| act.model.as_mut().unwrap().round = 2,
        |act| act.model.as_mut().unwrap().weights.clear(),
        |act| act.model.as_mut().unwrap().weights = vec![piece(1); MAX_SHARDS + 1],
        |act| act.model.as_mut().unwrap().weights.push(piece(9)),
        |act| act.model.as_mut().unwrap().weights[0].bytes = 5,
        |act| act.model.as_mut().unwrap().optimiser.push(piece(9)),
        |act| act.model.as_mut().unwrap().layout = piece(9),
        |act| {
            let large = Piece { bytes: MAX_MODEL_BYTES - 11, ..piece(9) };
            act.model.as_mut().unwrap().optimiser = vec![piece(9), large];
        },
        |act| {
            let large = Piece { bytes: u64::MAX, ..piece(9) };
            act.model.as_mut().unwrap().optimiser = vec![large; 2];
        },
        |act| act.model.as_mut().unwrap().holders.clear(),
        |act| act.model.as_mut().unwrap().holders = BTreeSet::from([id(1)]),
        |act| act.model.as_mut().unwrap().holders = BTreeSet::from([id(1), id(9)]),
        // What is in it.
        |act| act.counted.truncate(1),
        |act| act.counted.clear(),
        |act| act.counted[1] = act.counted[0].clone(),
        |act| act.counted.push(missed(3)),
        |act| act.counted.extend([missed(2), missed(2)]),
        |act| act.counted = vec![missed(0); MAX_PARTICIPANTS + 1],
        |act| {
            let CountedAs::Taken { base, .. } = &mut act.counted[0].how else { return };
            *base = 1;
        },
        |act| {
            let CountedAs::Taken { fence, .. } = &mut act.counted[0].how else { return };
            *fence = 0;
        },
        |act| {
            let CountedAs::Taken { fence, .. } = &mut act.counted[0].how else { return };
            *fence += 1;
        },
        |act| {
            let how = CountedAs::Refused { fence: 0, serial: 9, why: note("no") };
            act.counted.push(Counted { task: 2, how, times: None });
        },
        |act| {
            let names = (0..=MAX_METRICS).map(|n| name(&format!("m{n}")));
            act.metrics = names.map(|name| (name, Real::default())).collect();
        },
        // The round after it.
        |act| act.open.as_mut().unwrap().round = 1,
        |act| act.open.as_mut().unwrap().round = 3,
        |act| act.open.as_mut().unwrap().selected.clear(),
        |act| act.open.as_mut().unwrap().selected.extend([3]),
        |act| act.open.as_mut().unwrap().aggregators.clear(),
        |act| act.open.as_mut().unwrap().aggregators = vec![id(1); MAX_SHARDS + 1],
        |act| act.open.as_mut().unwrap().aggregators.push(id(2)),
        |act| act.open.as_mut().unwrap().aggregators.push(id(9)),
        // Nothing at all, and what only a model has.
        |act| (act.model, act.open) = (None, None),
        |act| (act.model, act.open) = (None, Some(open(1))),
        |act| {
            (act.model, act.open) = (None, Some(open(1)));
            act.counted.clear();
        },
    ];
    for (place, change) in wrong.into_iter().enumerate() {
        let mut scene = under_way(3);
        let mut act = good.clone();
        change(&mut act);
        assert_eq!(scene.act(&node(1), act), Err(Refusal::BadRound), "{place}");
    }
    let mut scene = under_way(3);
    let large = Piece { bytes: MAX_MODEL_BYTES - 16, ..piece(9) };
    let mut act = good;
    // With the layout and two shards, that is just as much as there may be.
    act.model.as_mut().unwrap().optimiser = vec![Piece { bytes: 4, ..large }, large];
    act.metrics = (0..MAX_METRICS).map(|n| (name(&format!("m{n}")), Real::default())).collect();
    scene.act(&node(1), act).unwrap();
}

#[test]
fn more_nodes_than_there_may_be_hold_no_model() {
    let mut scene = under_way(3);
    // None of these is a member, but a model that is held by so many is refused before anybody looks.
    let holders = (0..=MAX_HOLDERS as u8).map(|n| NodeId([n; 32])).collect();
    let many = Model { holders, ..model(1) };
    assert!(!many.is_sound());
    let counted = vec![taken(&scene, 0, 2, 0), taken(&scene, 1, 2, 0)];
    let act = commit(&mut scene, 1, Some(many), counted, None);
    assert_eq!(act, Err(Refusal::BadRound));
}

#[test]
fn one_participant_makes_the_first_model() {
    let mut scene = begun(1);
    let one = vec![taken(&scene, 0, 1, 0)];
    let early = commit(&mut scene, 1, Some(model(0)), one, None);
    assert_eq!(early, Err(Refusal::BadRound), "no round is open");
    assert_eq!(commit(&mut scene, 1, None, vec![], Some(open(1))), Err(Refusal::BadRound));
    commit(&mut scene, 1, None, vec![], Some(open(0))).unwrap();
    let both = vec![taken(&scene, 0, 1, 0), taken(&scene, 1, 1, 0)];
    assert_eq!(commit(&mut scene, 1, Some(model(0)), both, None), Err(Refusal::BadRound));
    assert_eq!(commit(&mut scene, 1, Some(model(0)), vec![], None), Err(Refusal::BadRound));
    let one = vec![taken(&scene, 1, 1, 77)];
    commit(&mut scene, 1, Some(model(0)), one, None).unwrap();
    // No round need be open at once, and there is none after the last.
    assert_eq!(course(&scene).open, None);
    commit(&mut scene, 1, None, vec![], Some(open(1))).unwrap();
    let counted = || vec![taken(&scene, 0, 2, 0), taken(&scene, 1, 2, 0)];
    let (early, good) = (counted(), counted());
    assert_eq!(commit(&mut scene, 1, Some(model(1)), early, Some(open(2))), Err(Refusal::BadRound));
    commit(&mut scene, 1, Some(model(1)), good, None).unwrap();
}

#[test]
fn nobody_makes_the_first_model_of_a_job_that_brings_one() {
    let mut scene = scene();
    let mut it = spec(&["p1", "p2", "p3"], 1);
    asked(&mut it).start = Some(VersionId([5; 16]));
    submit(&mut scene, it);
    claim(&mut scene, 1).unwrap();
    commit(&mut scene, 1, None, vec![], Some(open(0))).unwrap();
    commit(&mut scene, 1, Some(model(0)), vec![], Some(open(1))).unwrap();
}

#[test]
fn in_a_mesh_of_one_a_model_has_one_holder() {
    let mut scene = Scene::at_top();
    let mut it = spec(&["p1"], 1);
    asked(&mut it).min_parties = 1;
    submit(&mut scene, it);
    place(&mut scene, 0..1);
    claim(&mut scene, 1).unwrap();
    let alone = Open { selected: BTreeSet::from([0]), aggregators: vec![id(1)], ..open(0) };
    commit(&mut scene, 1, None, vec![], Some(alone)).unwrap();
    let first = vec![taken(&scene, 0, 1, 0)];
    let held = Model { holders: BTreeSet::from([id(1)]), ..model(0) };
    commit(&mut scene, 1, Some(held), first, None).unwrap();
}

#[test]
fn a_curve_is_thinned_and_keeps_its_newest_point() {
    let mut scene = under_way(1000);
    for n in 1..=255 {
        full_round(&mut scene, n, 1000);
    }
    assert_eq!(course(&scene).curve.len(), MAX_POINTS);
    full_round(&mut scene, 256, 1000);
    let rounds = |scene: &Scene| -> Vec<u32> {
        course(scene).curve.iter().map(|point| point.round).collect()
    };
    assert_eq!(rounds(&scene), (0..=256).step_by(2).collect::<Vec<u32>>());
    full_round(&mut scene, 257, 1000);
    assert_eq!(rounds(&scene).len(), 130);
    assert_eq!(rounds(&scene).last(), Some(&257));
    assert_eq!(scene.state.facts.flaw(), None);
}
