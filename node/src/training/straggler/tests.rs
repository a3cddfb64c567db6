use super::*;

type Records = BTreeMap<u32, Record>;

/// Participants that took so many seconds each, numbered from 0.
fn took(seconds: &[u32]) -> Records {
    let record = |seconds: &u32| Record { times: times(seconds * 1000), ..Record::default() };
    (0..).zip(seconds.iter().map(record)).collect()
}

fn times(ms: u32) -> Times {
    Times { compute_ms: ms, ..Times::default() }
}

fn tasks(tasks: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    tasks.into_iter().collect()
}

fn draws(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    move |below| random.usize(..below)
}

/// As the state counts an update.
fn sent(records: &mut Records, task: u32, ms: u32) {
    let record = records.entry(task).or_default();
    record.taken += 1;
    record.missed_in_a_row = 0;
    record.times = times(ms);
}

/// As the state counts one that did not come.
fn missed(records: &mut Records, task: u32) {
    let record = records.entry(task).or_default();
    record.missed += 1;
    record.missed_in_a_row += 1;
}

#[test]
fn a_whole_time_has_all_its_parts() {
    assert_eq!(whole_ms(&Times { fetch_ms: 1, compute_ms: 20, upload_ms: 300 }), 321);
    assert_eq!(whole_ms(&Times { fetch_ms: u32::MAX, compute_ms: 1, upload_ms: 0 }), 1_u64 << 32);
}

#[test]
fn a_deadline_is_the_median_and_five_times_the_spread() {
    assert_eq!(deadline_ms(&took(&[10, 20, 30]), &tasks(0..3)), Some(70_000));
    assert_eq!(deadline_ms(&took(&[40, 10, 30, 20]), &tasks(0..4)), Some(75_000));
}

#[test]
fn one_slow_participant_does_not_move_the_deadline() {
    // The spread is 1 s, so a tenth of the median stands in for it.
    assert_eq!(deadline_ms(&took(&[9, 10, 11, 12, 13]), &tasks(0..5)), Some(16_500));
    assert_eq!(deadline_ms(&took(&[9, 10, 11, 12, 3_000]), &tasks(0..5)), Some(16_500));
}

#[test]
fn while_few_are_known_the_deadline_is_doubled() {
    assert_eq!(deadline_ms(&took(&[10]), &tasks(0..1)), Some(30_000));
    assert_eq!(deadline_ms(&took(&[10, 10]), &tasks(0..2)), Some(30_000));
    assert_eq!(deadline_ms(&took(&[10, 10, 10]), &tasks(0..3)), Some(15_000));
}

#[test]
fn only_the_times_of_those_who_are_selected_count() {
    let records = took(&[10, 10, 10, 500, 500, 500, 0]);
    assert_eq!(deadline_ms(&records, &tasks([0, 1, 2, 6])), Some(15_000));
    assert_eq!(deadline_ms(&records, &tasks([6, 99])), None);
    assert_eq!(deadline_ms(&records, &tasks([])), None);
}

#[test]
fn a_deadline_is_between_a_second_and_an_hour() {
    let all = |ms: u32| -> Records {
        (0..3).map(|task| (task, Record { times: times(ms), ..Record::default() })).collect()
    };
    assert_eq!(deadline_ms(&all(1), &tasks(0..3)), Some(1_000));
    assert_eq!(deadline_ms(&all(1_000), &tasks(0..3)), Some(1_500));
    assert_eq!(deadline_ms(&all(u32::MAX), &tasks(0..3)), Some(3_600_000));
    assert_eq!(deadline_ms(&all(u32::MAX), &tasks(0..1)), Some(3_600_000));
}

#[test]
fn what_is_late_counts_less_and_never_nothing() {
    assert_eq!(staleness_weight(4, 5), 1.0);
    assert!((staleness_weight(3, 5) - 0.5_f64.sqrt()).abs() < 1e-12);
    assert_eq!(staleness_weight(1, 5), 0.5);
    assert!(staleness_weight(0, u32::MAX) > 0.0);
    // From the future, or before the first model: no bonus.
    assert_eq!(staleness_weight(9, 5), 1.0);
    assert_eq!(staleness_weight(0, 0), 1.0);
}

#[test]
fn a_dead_site_is_waited_for_once_and_again_once_it_returns() {
    let (present, mut records) = (tasks(0..3), Records::new());
    let mut waited = 0;
    for round in 1..=10 {
        let choice = choose(&Select::All, &present, &records, round, &mut draws(1));
        assert_eq!(choice.selected, present, "it may return in any round");
        waited += u32::from(choice.wanted == 3);
        sent(&mut records, 0, 1_000);
        sent(&mut records, 1, 1_000);
        missed(&mut records, 2);
    }
    assert_eq!(waited, 1);
    assert!(is_dropped(&records[&2]));

    sent(&mut records, 2, 9_000);
    assert!(!is_dropped(&records[&2]));
    assert_eq!(choose(&Select::All, &present, &records, 11, &mut draws(1)).wanted, 3);
}

#[test]
fn a_participant_that_is_not_there_is_not_selected() {
    let choice = choose(&Select::All, &tasks([1, 4]), &took(&[1, 1, 1, 1, 1]), 3, &mut draws(1));
    assert_eq!(choice, Choice { selected: tasks([1, 4]), wanted: 2 });
}

#[test]
fn when_all_are_dropped_the_first_to_return_is_enough() {
    let mut records = took(&[1, 1, 1]);
    records.values_mut().for_each(|record| record.missed_in_a_row = 5);
    let selects = [Select::All, Select::Random { count: 2 }, Select::Tiers { count: 2, tiers: 2 }];
    for select in selects {
        let choice = choose(&select, &tasks(0..3), &records, 3, &mut draws(1));
        assert_eq!(choice, Choice { selected: tasks(0..3), wanted: 1 });
        // And without anybody there is nothing to select, and nothing breaks.
        let choice = choose(&select, &tasks([]), &records, 3, &mut draws(1));
        assert_eq!(choice, Choice { selected: tasks([]), wanted: 1 });
    }
}

#[test]
fn three_in_ten_more_are_drawn_than_are_waited_for() {
    let mut ever = BTreeSet::new();
    for seed in 0..40 {
        let select = Select::Random { count: 10 };
        let choice = choose(&select, &tasks(0..40), &Records::new(), 1, &mut draws(seed));
        assert_eq!((choice.selected.len(), choice.wanted), (13, 10));
        ever.extend(choice.selected);
    }
    assert_eq!(ever, tasks(0..40), "anybody can be drawn");
    let choice =
        choose(&Select::Random { count: 1 }, &tasks(0..40), &Records::new(), 1, &mut draws(1));
    assert_eq!((choice.selected.len(), choice.wanted), (2, 1));
    let many = Select::Random { count: u32::MAX };
    let choice = choose(&many, &tasks(0..5), &Records::new(), 1, &mut draws(1));
    assert_eq!(choice, Choice { selected: tasks(0..5), wanted: 5 });
}

#[test]
fn the_dropped_take_nobodys_place_among_those_who_are_drawn() {
    let mut records = took(&[1; 10]);
    for task in 0..4 {
        records.entry(task).or_default().missed_in_a_row = 2;
    }
    for seed in 0..20 {
        let select = Select::Random { count: 3 };
        let choice = choose(&select, &tasks(0..10), &records, 1, &mut draws(seed));
        assert!(choice.selected.is_superset(&tasks(0..4)));
        assert_eq!((choice.selected.len(), choice.wanted), (4 + 4, 3));
    }
}

#[test]
fn with_tiers_every_participant_is_chosen_soon_and_as_often_as_any_other() {
    for (participants, tiers, count) in [(10, 5, 2), (20, 5, 4), (6, 3, 2), (9, 3, 3), (12, 2, 3)] {
        for seed in 0..20 {
            let (mut records, mut draw) = (Records::new(), draws(seed));
            let (present, select) = (tasks(0..participants), Select::Tiers { count, tiers });
            let mut chosen = BTreeSet::new();
            for round in 1..=60 {
                let choice = choose(&select, &present, &records, round, &mut draw);
                assert!(choice.wanted <= count as usize);
                if round <= 2 * tiers {
                    chosen.extend(choice.selected.iter().copied());
                } else {
                    let tier = |task: &u32| tier_of(*task, &records, tiers);
                    let of: BTreeSet<Option<u32>> = choice.selected.iter().map(tier).collect();
                    assert_eq!(of.len(), 1, "those of a round are of one tier");
                }
                for task in choice.selected {
                    sent(&mut records, task, 1_000 * (task + 1));
                }
            }
            assert_eq!(chosen, present);
            let taken = || records.values().map(|record| record.taken);
            assert!(taken().max().unwrap() - taken().min().unwrap() <= 2, "seed {seed}");
        }
    }
}

#[test]
fn a_tier_waits_for_no_more_than_it_has() {
    let mut records = took(&[1, 2, 3, 4]);
    records.entry(0).or_default().taken = 9;
    records.entry(1).or_default().taken = 9;
    let select = Select::Tiers { count: 3, tiers: 2 };
    let choice = choose(&select, &tasks(0..4), &records, 5, &mut draws(1));
    assert_eq!(choice, Choice { selected: tasks([2, 3]), wanted: 2 });
}

#[test]
fn of_tiers_with_as_many_turns_the_faster_is_taken() {
    let select = Select::Tiers { count: 2, tiers: 2 };
    let choice = choose(&select, &tasks(0..4), &took(&[8, 1, 9, 2]), 5, &mut draws(1));
    assert_eq!(choice.selected, tasks([1, 3]));
}

#[test]
fn a_tier_that_sends_rubbish_does_not_keep_its_turn() {
    let (mut records, mut draw) = (took(&[1, 1, 9, 9]), draws(1));
    let select = Select::Tiers { count: 2, tiers: 2 };
    let mut sound = 0;
    for round in 1..=20 {
        for task in choose(&select, &tasks(0..4), &records, round, &mut draw).selected {
            if task < 2 {
                records.entry(task).or_default().refused += 1;
            } else {
                sent(&mut records, task, 9_000);
                sound += 1;
            }
        }
    }
    assert_eq!(sound, 20, "two participants in every second round");
}

#[test]
fn a_tier_that_is_dead_costs_one_round() {
    let (mut records, mut draw) = (took(&[1, 1, 9, 9]), draws(1));
    let select = Select::Tiers { count: 2, tiers: 2 };
    let mut in_vain = 0;
    for round in 1..=20 {
        let choice = choose(&select, &tasks(0..4), &records, round, &mut draw);
        let (dead, alive): (Vec<u32>, Vec<u32>) =
            choice.selected.into_iter().partition(|task| *task < 2);
        in_vain += u32::from(alive.len() < choice.wanted);
        dead.into_iter().for_each(|task| missed(&mut records, task));
        alive.into_iter().for_each(|task| sent(&mut records, task, 9_000));
    }
    assert_eq!(in_vain, 1);
}

#[test]
fn one_who_was_away_does_not_get_every_turn_until_it_has_caught_up() {
    let (mut records, mut draw) = (took(&[1, 2, 3, 4]), draws(1));
    for task in 0..3 {
        records.entry(task).or_default().taken = 100;
    }
    let select = Select::Tiers { count: 2, tiers: 2 };
    let mut of_the_others = 0;
    for round in 101..=112 {
        let selected = choose(&select, &tasks(0..4), &records, round, &mut draw).selected;
        of_the_others += u32::from(selected.contains(&0));
        selected.into_iter().for_each(|task| sent(&mut records, task, 1_000 * (task + 1)));
    }
    assert!((4..=8).contains(&of_the_others), "{of_the_others} of 12");
}

#[test]
fn a_draw_that_is_out_of_range_chooses_the_last() {
    let select = Select::Random { count: 1 };
    let choice = choose(&select, &tasks(0..5), &Records::new(), 1, &mut |below: usize| below);
    assert_eq!(choice.selected, tasks([3, 4]));
}

#[test]
fn the_first_model_is_made_by_one_and_by_the_next_if_it_does_not_come() {
    let mut records = Records::new();
    let first = |records: &Records| choose(&Select::All, &tasks(3..6), records, 0, &mut draws(1));
    assert_eq!(first(&records), Choice { selected: tasks([3]), wanted: 1 });
    missed(&mut records, 3);
    assert_eq!(first(&records).selected, tasks([4]));
    missed(&mut records, 4);
    missed(&mut records, 5);
    assert_eq!(first(&records).selected, tasks([3]));
}

#[test]
fn tiers_are_of_the_same_size_and_the_unknown_are_in_the_slowest() {
    let mut records = took(&[50, 10, 40, 20, 30, 60, 0]);
    let tiers: Vec<Option<u32>> = (0..8).map(|task| tier_of(task, &records, 3)).collect();
    let of = Some::<u32>;
    assert_eq!(tiers, [of(2), of(0), of(1), of(0), of(1), of(2), of(2), None]);
    records.entry(1).or_default().missed_in_a_row = 2;
    assert_eq!(tier_of(1, &records, 3), None, "it is dropped");
    // No tier is empty, however many are asked for.
    let tiers: Vec<Option<u32>> = (0..2).map(|task| tier_of(task, &took(&[2, 1]), 5)).collect();
    assert_eq!(tiers, [of(1), of(0)]);
    assert_eq!(tier_of(0, &took(&[0, 0]), 5), of(0));
    assert_eq!(tier_of(0, &took(&[1, 2]), 0), of(0));
}

/// What there is to say of the fourth, after a change.
fn change(records: &mut Records, change: impl FnOnce(&mut Record)) -> Standing {
    change(records.entry(3).or_default());
    standing(3, records)
}

#[test]
fn a_participant_is_known_by_the_worst_that_can_be_said() {
    let mut records = took(&[10, 10, 10, 21, 20, 0]);
    records.values_mut().for_each(|record| record.taken = 8);
    assert_eq!(standing(0, &records), Standing::Good);
    assert_eq!(standing(99, &records), Standing::Good);
    assert_eq!(standing(4, &records), Standing::Good, "twice is not more than twice");
    assert_eq!(standing(5, &records), Standing::Good, "not seen is not slow");
    assert_eq!(standing(3, &records), Standing::Slow);

    assert_eq!(change(&mut records, |record| record.late = 1), Standing::Slow);
    assert_eq!(change(&mut records, |record| record.late = 2), Standing::Late);
    assert_eq!(change(&mut records, |record| record.missed_in_a_row = 1), Standing::Dropped);
    let refused = change(&mut records, |record| {
        record.refused = 1;
        record.why = Some("a value is no number".parse().unwrap());
    });
    assert_eq!(refused, Standing::Refused);
    assert_eq!(refused.as_str(), "refused");
    assert_eq!(change(&mut records, |record| record.why = None), Standing::Dropped);
}

#[test]
fn shares_are_by_examples() {
    let mut records = took(&[1, 1, 1]);
    assert_eq!(shares(&records), BTreeMap::from([(0, 0.0), (1, 0.0), (2, 0.0)]));
    records.entry(0).or_default().examples = 300;
    records.entry(2).or_default().examples = 100;
    assert_eq!(shares(&records), BTreeMap::from([(0, 0.75), (1, 0.0), (2, 0.25)]));
    records.values_mut().for_each(|record| record.examples = u64::MAX);
    assert!((shares(&records).values().sum::<f64>() - 1.0).abs() < 1e-9);
}
