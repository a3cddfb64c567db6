use mesh_consensus::id::{Hash, NodeId};
use mesh_consensus::time::Time;

use super::*;
use crate::job::training::{Privacy, Wire};
use crate::state::course::Piece;

const VALUES: u64 = 1000;

fn number(number: f64) -> Real {
    Real::new(number).unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn spec() -> Federated {
    Federated {
        rounds: 20,
        strategy: Strategy::FedAvg { rate: number(1.0) },
        min_parties: 2,
        deadline_ms: None,
        aggregators: vec![name("lab")],
        wire: Wire::F32,
        select: Select::All,
        privacy: None,
        start: None,
        model: name("digits"),
    }
}

fn buffered(buffer: u32) -> Federated {
    let strategy = Strategy::FedBuff { buffer, rate: number(1.0), max_staleness: 4 };
    Federated { strategy, ..spec() }
}

fn private(at: NoiseAt) -> Federated {
    let privacy = Privacy {
        epsilon: number(8.0),
        delta: number(1e-3),
        noise: number(2.0),
        clip: number(0.5),
        at,
    };
    Federated { privacy: Some(privacy), ..spec() }
}

fn set(tasks: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    tasks.into_iter().collect()
}

/// A course whose round is open for the tasks below `tasks`.
fn course(round: u32, tasks: u32) -> Course {
    let piece = |bytes| Piece { hash: Hash([1; 32]), bytes };
    let model = Model {
        round: round.saturating_sub(1),
        layout: piece(10),
        weights: vec![piece(VALUES), piece(3 * VALUES)],
        optimiser: Vec::new(),
        holders: BTreeSet::from([NodeId([1; 32])]),
    };
    let open = Open {
        round,
        selected: set(0..tasks),
        aggregators: vec![NodeId([1; 32])],
        since: Time(0),
        deadline_ms: Some(60_000),
    };
    Course { model: (round > 0).then_some(model), open: Some(open), ..Course::default() }
}

/// A good update of a task for this round.
fn arrival(round: u32, task: u32) -> Arrival {
    Arrival {
        task,
        fence: 7,
        serial: u64::from(round) + 1,
        base: round.checked_sub(1),
        update: Hash([task as u8; 32]),
        values: VALUES,
        examples: 10 * u64::from(task + 1),
        metrics: BTreeMap::new(),
        evaluated: None,
        times: Times { fetch_ms: 1, compute_ms: 20, upload_ms: 300 },
        norm2: Some(number(1.0)),
    }
}

fn heard(arrivals: Vec<Arrival>) -> Heard {
    Heard { arrivals: vec![arrivals] }
}

/// All of the tasks below `tasks` are there and run.
fn ask(spec: &Federated, course: &Course, tasks: u32, heard: &Heard, elapsed_ms: u64) -> Move {
    let all = set(0..tasks);
    let wanted = course.open.as_ref().map_or(0, |open| wanted(spec, course, open));
    decide(spec, course, &all, &all, heard, wanted, elapsed_ms)
}

fn sum(decided: Move) -> Sum {
    match decided {
        Move::Sum(sum) => sum,
        other => panic!("{other:?}"),
    }
}

fn waits(decided: Move) -> Option<u64> {
    match decided {
        Move::Wait { until_ms } => until_ms,
        other => panic!("{other:?}"),
    }
}

fn in_it(sum: &Sum) -> Vec<u32> {
    sum.parts.iter().map(|part| part.task).collect()
}

fn weights(sum: &Sum) -> Vec<f64> {
    sum.parts.iter().map(|part| part.weight.get()).collect()
}

fn missed(sum: &Sum) -> Vec<u32> {
    let missed = sum.counted.iter().filter(|one| one.how == CountedAs::Missed);
    missed.map(|one| one.task).collect()
}

fn refused(sum: &Sum) -> Vec<(u32, String)> {
    let refused = sum.counted.iter().filter_map(|one| match &one.how {
        CountedAs::Refused { why, .. } => Some((one.task, why.to_string())),
        _ => None,
    });
    refused.collect()
}

#[test]
fn a_round_closes_when_all_have_come() {
    let (spec, course) = (spec(), course(3, 3));
    let two = heard(vec![arrival(3, 0), arrival(3, 2)]);
    assert_eq!(waits(ask(&spec, &course, 3, &two, 100)), Some(60_000));
    let three = heard((0..3).map(|task| arrival(3, task)).collect());
    let sum = sum(ask(&spec, &course, 3, &three, 100));
    assert_eq!(in_it(&sum), [0, 1, 2]);
    assert_eq!(weights(&sum), [10.0, 20.0, 30.0]);
    assert_eq!(sum.divisor, number(60.0));
    assert_eq!((sum.noise, missed(&sum)), (None, vec![]));
    let first = &sum.counted[0];
    let how =
        CountedAs::Taken { fence: 7, serial: 4, base: 2, examples: 10, update: Hash([0; 32]) };
    assert_eq!((first.task, &first.how), (0, &how));
    assert_eq!(first.times, Some(arrival(3, 0).times));
}

#[test]
fn no_round_is_open_so_there_is_nothing_to_do() {
    let course = Course { open: None, ..course(3, 3) };
    let three = heard((0..3).map(|task| arrival(3, task)).collect());
    assert_eq!(waits(ask(&spec(), &course, 3, &three, 1_000_000)), None);
}

#[test]
fn at_the_deadline_a_round_closes_with_what_it_has_if_that_is_enough() {
    let (spec, course) = (spec(), course(3, 4));
    let one = heard(vec![arrival(3, 1)]);
    assert_eq!(waits(ask(&spec, &course, 4, &one, 1_000_000)), None, "too few, however late");
    let two = heard(vec![arrival(3, 1), arrival(3, 2)]);
    assert_eq!(waits(ask(&spec, &course, 4, &two, 59_999)), Some(60_000));
    let sum = sum(ask(&spec, &course, 4, &two, 60_000));
    assert_eq!((in_it(&sum), missed(&sum)), (vec![1, 2], vec![0, 3]));
    assert_eq!(sum.divisor, number(50.0));
}

#[test]
fn who_does_not_run_is_not_waited_for_long() {
    let (spec, course) = (spec(), course(3, 3));
    let two = heard(vec![arrival(3, 0), arrival(3, 1)]);
    let present = set(0..3);
    let at = |ms| decide(&spec, &course, &present, &set([0, 1]), &two, 3, ms);
    assert_eq!(waits(at(4_999)), Some(GRACE_MS));
    let closed = sum(at(5_000));
    assert_eq!((in_it(&closed), missed(&closed)), (vec![0, 1], vec![2]));
    // One that runs is waited for until the deadline.
    assert_eq!(waits(ask(&spec, &course, 3, &two, 50_000)), Some(60_000));
    // That others do not run helps nobody if there are too few.
    let one = heard(vec![arrival(3, 0)]);
    let alone = decide(&spec, &course, &present, &set([0]), &one, 3, 1_000_000);
    assert_eq!(waits(alone), None);
}

#[test]
fn without_a_deadline_all_who_run_are_waited_for() {
    let (spec, mut course) = (spec(), course(3, 3));
    if let Some(open) = &mut course.open {
        open.deadline_ms = None;
    }
    let two = heard(vec![arrival(3, 0), arrival(3, 1)]);
    assert_eq!(waits(ask(&spec, &course, 3, &two, 1_000_000)), None);
    let without = |ms| decide(&spec, &course, &set(0..3), &set([0, 1]), &two, 3, ms);
    assert_eq!(waits(without(9_999)), Some(LONG_GRACE_MS));
    assert_eq!(in_it(&sum(without(10_000))), [0, 1]);
}

#[test]
fn more_are_selected_than_are_waited_for() {
    let spec = Federated { select: Select::Random { count: 3 }, ..spec() };
    let course = course(3, 5);
    let three = heard([0, 2, 4].map(|task| arrival(3, task)).into());
    let closed = sum(ask(&spec, &course, 5, &three, 100));
    assert_eq!((in_it(&closed), missed(&closed)), (vec![0, 2, 4], vec![1, 3]));
    // One that does not run and was not needed has missed nothing.
    let closed = sum(decide(&spec, &course, &set(0..5), &set(0..4), &three, 3, 100));
    assert_eq!(missed(&closed), [1, 3]);
    let closed = sum(decide(&spec, &course, &set(0..5), &set([0, 1, 2, 4]), &three, 3, 100));
    assert_eq!(missed(&closed), [1]);
}

#[test]
fn dropped_ones_are_welcome_and_not_waited_for() {
    let (spec, mut course) = (spec(), course(3, 3));
    let dropped = Record { missed: 9, missed_in_a_row: 9, ..Record::default() };
    course.records.insert(2, dropped);
    let two = heard(vec![arrival(3, 0), arrival(3, 1)]);
    assert_eq!(in_it(&sum(ask(&spec, &course, 3, &two, 100))), [0, 1]);
    let returned = heard((0..3).map(|task| arrival(3, task)).collect());
    assert_eq!(in_it(&sum(ask(&spec, &course, 3, &returned, 100))), [0, 1, 2]);
}

#[test]
fn late_updates_of_others_count_less_and_are_not_scaled_up() {
    let (spec, course) = (spec(), course(9, 2));
    let late = Arrival { base: Some(5), ..arrival(9, 2) };
    let all = heard(vec![arrival(9, 0), arrival(9, 1), late]);
    let sum = sum(ask(&spec, &course, 3, &all, 100));
    assert_eq!(in_it(&sum), [0, 1, 2]);
    assert_eq!(weights(&sum), [10.0, 20.0, 30.0 * straggler::staleness_weight(5, 9)]);
    assert!(weights(&sum)[2] < 30.0);
    assert_eq!(sum.divisor, number(60.0), "as if it were not late");
}

#[test]
fn an_update_that_is_too_old_or_from_the_future_is_refused() {
    let course = course(20, 3);
    let of = |spec: &Federated, base| {
        let odd = Arrival { base: Some(base), ..arrival(20, 2) };
        let all = heard(vec![arrival(20, 0), arrival(20, 1), odd]);
        refused(&sum(ask(spec, &course, 3, &all, 100)))
    };
    assert!(of(&spec(), 19 - MAX_STALENESS).is_empty());
    assert_eq!(of(&spec(), 18 - MAX_STALENESS), [(2, "it began 9 models ago".to_owned())]);
    let future = [(2, "it began from model 20, which does not stand".to_owned())];
    assert_eq!(of(&spec(), 20), future);
    assert!(of(&buffered(2), 15).is_empty());
    assert_eq!(of(&buffered(2), 14), [(2, "it began 5 models ago".to_owned())]);
}

#[test]
fn flawed_updates_are_refused_by_name_and_nothing_of_them_counts() {
    let good = || arrival(3, 2);
    let odd = [
        (Arrival { norm2: None, ..good() }, "not numbers"),
        (Arrival { norm2: Some(number(1e26)), ..good() }, "its norm is 1.000e13"),
        (Arrival { norm2: Some(number(4e12)), ..good() }, "its norm is 2.000e6"),
        (Arrival { norm2: Some(number(-1.0)), ..good() }, "not numbers"),
        (Arrival { examples: 0, ..good() }, "0 examples"),
        (Arrival { examples: MAX_EXAMPLES + 1, ..good() }, "examples"),
        (Arrival { values: VALUES - 1, ..good() }, "it has 999 values, and the model has 1000"),
    ];
    let (spec, course) = (spec(), course(3, 3));
    for (odd, text) in odd {
        let all = heard(vec![arrival(3, 0), odd, arrival(3, 1)]);
        let sum = sum(ask(&spec, &course, 3, &all, 100));
        assert_eq!(in_it(&sum), [0, 1], "{text}");
        let named = refused(&sum);
        assert!(named.len() == 1 && named[0].0 == 2, "{named:?}");
        assert!(named[0].1.contains(text), "{named:?}");
        assert_eq!((sum.divisor, missed(&sum)), (number(30.0), vec![]));
    }
}

#[test]
fn a_norm_is_compared_with_the_one_in_the_middle() {
    let (spec, course) = (Federated { min_parties: 1, ..spec() }, course(3, 2));
    let of = |first: f64, second: f64| {
        let one =
            |task, norm: f64| Arrival { norm2: Some(number(norm * norm)), ..arrival(3, task) };
        let both = heard(vec![one(0, first), one(1, second)]);
        in_it(&sum(ask(&spec, &course, 2, &both, 100)))
    };
    assert_eq!(of(1.0, 0.9e6), [0, 1]);
    assert_eq!(of(1.0, 1.1e6), [0], "of two, the smaller is the measure");
    assert_eq!(of(1.1e6, 1.0), [1]);
    assert_eq!(of(0.0, 5.0), [0, 1], "nothing is measured by one that did not move");
}

#[test]
fn when_too_few_can_still_count_the_job_gives_up_and_says_who_was_refused() {
    let (spec, course) = (spec(), course(3, 2));
    let bad = Arrival { norm2: None, ..arrival(3, 1) };
    let both = heard(vec![arrival(3, 0), bad.clone()]);
    let Move::GiveUp(why) = ask(&spec, &course, 2, &both, 100) else { panic!() };
    assert!(why.as_str().contains("task 1: it has values that are not numbers"), "{why}");
    // A third one may still help.
    assert_eq!(waits(ask(&spec, &course, 3, &both, 1_000_000)), None);
}

#[test]
fn when_too_few_are_left_the_job_gives_up() {
    let (spec, course) = (spec(), course(3, 3));
    let three = heard((0..3).map(|task| arrival(3, task)).collect());
    let one = set([1]);
    let Move::GiveUp(why) = decide(&spec, &course, &one, &one, &three, 3, 0) else { panic!() };
    assert_eq!(why.as_str(), "1 of its participants are left, and a round needs 2");
}

#[test]
fn what_was_counted_once_is_not_counted_again() {
    let (spec, mut course) = (spec(), course(3, 2));
    let two = heard(vec![arrival(3, 0), arrival(3, 1)]);
    course.records.insert(1, Record { last: Some((7, 4)), ..Record::default() });
    assert_eq!(waits(ask(&spec, &course, 2, &two, 1_000_000)), None);
    // A later number, or a later attempt, is another update.
    for last in [(7, 3), (6, 9)] {
        course.records.insert(1, Record { last: Some(last), ..Record::default() });
        assert_eq!(in_it(&sum(ask(&spec, &course, 2, &two, 0))), [0, 1]);
    }
    course.records.insert(1, Record { last: Some((8, 0)), ..Record::default() });
    assert_eq!(waits(ask(&spec, &course, 2, &two, 0)), None);
}

#[test]
fn of_each_task_one_update_counts() {
    let later = Arrival { serial: 9, examples: 99, ..arrival(3, 0) };
    let all = heard(vec![later.clone(), arrival(3, 0), arrival(3, 1), arrival(3, 1)]);
    let closed = sum(ask(&spec(), &course(3, 2), 2, &all, 0));
    assert_eq!(in_it(&closed), [0, 1]);
    assert_eq!((closed.parts[0].serial, closed.parts[0].weight), (9, number(99.0)));
    // Where they queue up, the older one goes first; of a later attempt, none that an earlier one left.
    let closed = sum(ask(&buffered(2), &course(3, 2), 2, &all, 0));
    assert_eq!((in_it(&closed), closed.parts[0].serial), (vec![0, 1], 4));
    let again = Arrival { fence: 8, ..later };
    let all = heard(vec![arrival(3, 0), again, arrival(3, 1)]);
    let closed = sum(ask(&buffered(2), &course(3, 2), 2, &all, 0));
    assert_eq!((closed.parts[0].fence, closed.parts[0].serial), (8, 9));
}

#[test]
fn an_update_is_whole_when_every_shard_has_it_and_says_the_same() {
    let (spec, course) = (Federated { min_parties: 1, ..spec() }, course(3, 1));
    let part = |norm2: f64| Arrival { norm2: Some(number(norm2)), ..arrival(3, 0) };
    let shards = |arrivals: Vec<Vec<Arrival>>| ask(&spec, &course, 1, &Heard { arrivals }, 0);
    assert_eq!(waits(shards(vec![vec![part(1.0)], vec![]])), None);
    assert_eq!(waits(shards(vec![])), None);
    assert_eq!(in_it(&sum(shards(vec![vec![part(1.0)], vec![part(1.0)]]))), [0]);
    let differ = [
        Arrival { serial: 9, ..part(1.0) },
        Arrival { fence: 9, ..part(1.0) },
        Arrival { update: Hash([9; 32]), ..part(1.0) },
        Arrival { values: 9, ..part(1.0) },
        Arrival { examples: 9, ..part(1.0) },
        Arrival { base: Some(1), ..part(1.0) },
    ];
    for other in differ {
        assert_eq!(waits(shards(vec![vec![part(1.0)], vec![other]])), None);
    }
    // One shard that is not made of numbers spoils all of it.
    let spoilt = Arrival { norm2: None, ..part(1.0) };
    assert!(matches!(shards(vec![vec![part(1.0)], vec![spoilt]]), Move::GiveUp(_)));
    // Times are those of the slowest shard.
    let slow = Arrival { times: Times { upload_ms: 999, ..Times::default() }, ..part(1.0) };
    let closed = sum(shards(vec![vec![part(1.0)], vec![slow]]));
    let times = Times { fetch_ms: 1, compute_ms: 20, upload_ms: 999 };
    assert_eq!(closed.counted[0].times, Some(times));
}

#[test]
fn the_first_model_is_one_participants() {
    let (spec, course) = (spec(), course(0, 3));
    assert_eq!(waits(ask(&spec, &course, 3, &heard(vec![]), 1_000_000)), None);
    let difference = Arrival { base: Some(0), ..arrival(0, 0) };
    let untrained = Arrival { examples: 0, values: 77, ..arrival(0, 1) };
    let all = heard(vec![arrival(0, 2), difference, untrained]);
    let closed = sum(ask(&spec, &course, 3, &all, 0));
    assert_eq!((in_it(&closed), weights(&closed)), (vec![1], vec![1.0]));
    assert_eq!((closed.divisor, closed.noise), (number(1.0), None));
    assert_eq!(closed.counted.len(), 1, "the others are left alone");
    // What has no numbers makes no model.
    let spoilt = Arrival { norm2: None, ..arrival(0, 0) };
    let closed = sum(ask(&spec, &course, 3, &heard(vec![spoilt.clone(), arrival(0, 2)]), 0));
    assert_eq!((in_it(&closed), refused(&closed).len()), (vec![2], 1));
    assert_eq!(waits(ask(&spec, &course, 3, &heard(vec![spoilt]), 0)), None);
    // Values themselves are nothing for a later round.
    let values = Arrival { base: None, ..arrival(3, 0) };
    let late = heard(vec![values, arrival(3, 1)]);
    assert_eq!(waits(ask(&spec, &self::course(3, 2), 2, &late, 0)), None);
}

#[test]
fn with_noise_at_the_aggregator_updates_are_clipped_and_the_divisor_is_fixed() {
    let (spec, course) = (private(NoiseAt::Aggregator), course(3, 4));
    let long = Arrival { norm2: Some(number(4.0)), ..arrival(3, 1) };
    let short = Arrival { norm2: Some(number(0.01)), ..arrival(3, 2) };
    let all = heard(vec![arrival(3, 0), long, short]);
    let closed = sum(ask(&spec, &course, 4, &all, 60_000));
    assert_eq!(weights(&closed), [0.5, 0.25, 1.0], "examples do not count");
    assert_eq!(closed.divisor, number(4.0), "one did not come");
    assert_eq!(closed.noise, Some(number(1.0)));
}

#[test]
fn with_noise_at_the_parties_nobody_adds_more() {
    let (spec, course) = (private(NoiseAt::Party), course(3, 2));
    let all = heard(vec![arrival(3, 0), arrival(3, 1)]);
    let closed = sum(ask(&spec, &course, 2, &all, 0));
    assert_eq!((weights(&closed), closed.noise), (vec![1.0, 1.0], None));
    assert_eq!(closed.divisor, number(2.0));
}

#[test]
fn examples_do_not_count_for_robust_strategies() {
    let robust = [Strategy::Median, Strategy::TrimmedMean { trim: number(0.2) }];
    for strategy in robust {
        let spec = Federated { strategy, ..spec() };
        let all = heard(vec![arrival(3, 0), arrival(3, 1)]);
        let closed = sum(ask(&spec, &course(3, 2), 2, &all, 0));
        assert_eq!((weights(&closed), closed.divisor), (vec![1.0, 1.0], number(2.0)));
    }
}

#[test]
fn a_buffer_closes_when_it_is_full_whoever_filled_it_and_nobody_has_missed_anything() {
    let (spec, course) = (buffered(3), course(3, 2));
    let two = heard(vec![arrival(3, 4), arrival(3, 5)]);
    assert_eq!(waits(ask(&spec, &course, 6, &two, 100)), Some(60_000));
    let three = heard([3, 4, 5].map(|task| arrival(3, task)).into());
    let closed = sum(ask(&spec, &course, 6, &three, 100));
    assert_eq!((in_it(&closed), missed(&closed)), (vec![3, 4, 5], vec![]));
    // One that is smaller than what a round needs makes no model by itself.
    assert_eq!(waits(ask(&buffered(1), &course, 6, &heard(vec![arrival(3, 4)]), 0)), None);
    // More than there are cannot come.
    let all = heard((0..2).map(|task| arrival(3, task)).collect());
    assert_eq!(in_it(&sum(ask(&spec, &course, 2, &all, 100))), [0, 1]);
    let away = decide(&spec, &course, &set(0..3), &set(0..2), &all, 2, 4_999);
    assert_eq!(waits(away), Some(GRACE_MS));
    let away = decide(&spec, &course, &set(0..3), &set(0..2), &all, 2, 5_000);
    assert_eq!(in_it(&sum(away)), [0, 1]);
}

#[test]
fn metrics_are_means_by_examples_and_what_was_held_back_counts_first() {
    let with = |task, loss: f64, evaluated| Arrival {
        metrics: BTreeMap::from([(name("loss"), number(loss)), (name("train"), number(loss))]),
        evaluated,
        ..arrival(3, task)
    };
    let held =
        |examples, loss: f64| Some((examples, BTreeMap::from([(name("loss"), number(loss))])));
    // Of 10 and of 20 examples.
    let both = heard(vec![with(0, 3.0, held(1, 0.5)), with(1, 6.0, held(3, 0.1))]);
    let closed = sum(ask(&spec(), &course(3, 2), 2, &both, 0));
    let means = [(name("loss"), number(0.8 / 4.0)), (name("train"), number(5.0))];
    let near = |a: &Real, b: &Real| (a.get() - b.get()).abs() < 1e-12;
    assert_eq!(closed.metrics.len(), 2);
    assert!(means.iter().all(|(name, mean)| near(&closed.metrics[name], mean)), "{closed:?}");
    // Held back, but of no examples: as if it had not been said.
    let both = heard(vec![with(0, 3.0, held(0, 0.5)), with(1, 6.0, None)]);
    let closed = sum(ask(&spec(), &course(3, 2), 2, &both, 0));
    assert!(near(&closed.metrics[&name("loss")], &number(5.0)));
}

#[test]
fn metrics_are_few_and_finite() {
    let of = |value: f64| {
        let many = (0..MAX_METRICS + 5).map(|n| (name(&format!("a{n:02}")), number(value)));
        let many: BTreeMap<Name, Real> = many.collect();
        let one = |task| Arrival {
            metrics: many.clone(),
            evaluated: Some((5, BTreeMap::from([(name("z"), number(1.0))]))),
            examples: 1,
            ..arrival(3, task)
        };
        sum(ask(&spec(), &course(3, 2), 2, &heard(vec![one(0), one(1)]), 0)).metrics
    };
    let metrics = of(1.0);
    assert_eq!(metrics.len(), MAX_METRICS);
    assert!(metrics.contains_key(&name("z")), "what was held back goes first");
    // Two of these are more than there are numbers.
    assert_eq!(of(1e308).into_keys().collect::<Vec<_>>(), [name("z")]);
}

#[test]
fn a_round_is_short_when_those_who_were_selected_cannot_fill_it() {
    let (spec, course) = (spec(), course(3, 2));
    let one = heard(vec![arrival(3, 0)]);
    assert!(!is_short(&spec, &course, &set(0..2), &one));
    assert!(is_short(&spec, &course, &set([0, 2, 3]), &one), "task 1 does not run");
    let other = heard(vec![arrival(3, 0), arrival(3, 3)]);
    assert!(!is_short(&spec, &course, &set([]), &other));
    let first = self::course(0, 1);
    assert!(is_short(&spec, &first, &set([1]), &heard(vec![])));
    assert!(!is_short(&spec, &first, &set([0]), &heard(vec![])));
}

#[test]
fn records_are_foreseen() {
    let (spec, course) = (spec(), course(9, 4));
    let late = Arrival { base: Some(5), ..arrival(9, 1) };
    let bad = Arrival { norm2: None, ..arrival(9, 2) };
    let all = heard(vec![arrival(9, 0), late, bad]);
    let closed = sum(ask(&spec, &course, 4, &all, 60_000));
    let before = Record { missed_in_a_row: 1, missed: 4, taken: 6, ..Record::default() };
    let before = BTreeMap::from([(0, before.clone()), (3, before)]);
    let records = after(&before, &closed.counted, 9);
    let of = |task: u32| {
        let record = &records[&task];
        (record.taken, record.late, record.refused, record.missed, record.missed_in_a_row)
    };
    assert_eq!(
        [0, 1, 2, 3].map(of),
        [(7, 0, 0, 4, 0), (1, 1, 0, 0, 0), (0, 0, 1, 0, 0), (6, 0, 0, 5, 2),]
    );
    assert_eq!((records[&0].last, records[&0].examples), (Some((7, 10)), 10));
    assert_eq!(records[&2].last, Some((7, 10)), "what was refused is known, too");
    assert!(records[&2].why.is_some());
}

/// Whatever comes in whatever order: each task counts once, each update that counts is whole, and the answer is the same.
#[test]
fn random_arrivals_never_count_twice_and_their_order_does_not_matter() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut closed = 0;
    for _ in 0..3000 {
        let tasks = rng.u32(2..6);
        let shards = rng.usize(1..4);
        let spec = if rng.bool() { spec() } else { buffered(rng.u32(1..5)) };
        let mut course = course(5, tasks);
        if rng.bool() {
            let last = Some((rng.u64(6..8), rng.u64(5..8)));
            course.records.insert(rng.u32(0..tasks), Record { last, ..Record::default() });
        }
        // A name stands for one update.
        let mut updates = BTreeMap::new();
        for _ in 0..rng.usize(0..24) {
            let update = Arrival {
                fence: rng.u64(6..8),
                serial: rng.u64(5..8),
                base: [None, Some(4), Some(4), Some(3), Some(9)][rng.usize(0..5)],
                norm2: [None, Some(number(1.0)), Some(number(2.0))][rng.usize(0..3)],
                ..arrival(5, rng.u32(0..tasks + 1))
            };
            updates.insert((update.task, update.fence, update.serial), update);
        }
        let mut arrivals: Vec<Vec<Arrival>> = vec![Vec::new(); shards];
        for update in updates.values() {
            for shard in &mut arrivals {
                // Now and then one is missing, and now and then it is told twice.
                for _ in 0..[0, 1, 1, 1, 2][rng.usize(0..5)] {
                    shard.push(update.clone());
                }
            }
        }
        let active: BTreeSet<u32> = (0..tasks).filter(|_| rng.u8(0..4) > 0).collect();
        let (present, elapsed) = (set(0..tasks), rng.u64(0..100_000));
        let decided = |arrivals: &[Vec<Arrival>]| {
            let heard = Heard { arrivals: arrivals.to_vec() };
            decide(&spec, &course, &present, &active, &heard, tasks as usize, elapsed)
        };
        let first = decided(&arrivals);
        for _ in 0..3 {
            arrivals.iter_mut().for_each(|shard| rng.shuffle(shard));
            assert_eq!(decided(&arrivals), first);
        }
        let Move::Sum(sum) = first else { continue };
        closed += 1;
        let tasks: BTreeSet<u32> = sum.parts.iter().map(|part| part.task).collect();
        assert_eq!(tasks.len(), sum.parts.len(), "once each");
        let counted: BTreeSet<u32> = sum.counted.iter().map(|one| one.task).collect();
        assert_eq!(counted.len(), sum.counted.len(), "once each");
        let taken = sum.counted.iter().filter(|one| matches!(one.how, CountedAs::Taken { .. }));
        assert_eq!(taken.map(|one| one.task).collect::<BTreeSet<_>>(), tasks, "what is in is told");
        for part in &sum.parts {
            let name = |one: &Arrival| {
                (one.task, one.fence, one.serial) == (part.task, part.fence, part.serial)
            };
            assert!(arrivals.iter().all(|shard| shard.iter().any(name)), "in every shard");
            let last = course.records.get(&part.task).and_then(|record| record.last);
            assert!(last.is_none_or(|last| (part.fence, part.serial) > last), "never before");
        }
    }
    assert!(closed > 200, "{closed}");
}

#[test]
fn one_that_is_not_waited_for_fills_nobodys_place() {
    let (spec, mut course) = (spec(), course(9, 4));
    course.records.entry(3).or_default().missed_in_a_row = 1;
    let without = heard(vec![arrival(9, 0), arrival(9, 1), arrival(9, 3)]);
    assert!(matches!(ask(&spec, &course, 3, &without, 10), Move::Wait { .. }));
    let with = heard(vec![arrival(9, 0), arrival(9, 1), arrival(9, 2)]);
    assert_eq!(sum(ask(&spec, &course, 3, &with, 10)).parts.len(), 3);
}

#[test]
fn one_that_is_known_to_come_too_late_holds_up_no_round() {
    let mut course = course(5, 3);
    let slow = Times { compute_ms: 90_000, ..Times::default() };
    // It was missed, and then its update came: late, but it did.
    let record = Record { missed: 1, taken: 1, late: 1, times: slow, ..Record::default() };
    course.records.insert(2, record.clone());
    let two = heard(vec![arrival(5, 0), arrival(5, 1)]);
    assert_eq!(in_it(&sum(ask(&spec(), &course, 3, &two, 400))), [0, 1]);
    assert_eq!(waits(ask(&spec(), &course, 3, &heard(vec![arrival(5, 0)]), 400)), None);
    // One that was never missed has its chance until the deadline, and one that has become faster again.
    course.records.insert(2, Record { missed: 0, ..record.clone() });
    assert_eq!(waits(ask(&spec(), &course, 3, &two, 400)), Some(60_000));
    course.records.insert(2, Record { times: Times::default(), ..record });
    assert_eq!(waits(ask(&spec(), &course, 3, &two, 400)), Some(60_000));
}
