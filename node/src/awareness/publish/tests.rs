use super::*;
use crate::awareness::bounded::{Ratio, Text};
use crate::awareness::record::{Facts, GpuFacts, Health};
use crate::awareness::signed::Said;
use crate::awareness::view::{Judged, View};
use crate::clock;

const MESH: MeshId = MeshId([1; 32]);

fn key() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

fn record() -> Record {
    let facts = Facts {
        memory_bytes: 1000,
        disk_bytes: 1000,
        gpus: vec![GpuFacts { memory_mib: 1000, ..GpuFacts::default() }],
        ..Facts::default()
    };
    let load = Load {
        memory_free_bytes: 500,
        disk_free_bytes: 500,
        gpus: vec![GpuLoad::default()],
        ..Load::default()
    };
    let (data, overlay) = (Vec::new(), Vec::new());
    Record { data, overlay, name: Text::new("n"), version: Text::new("1"), facts, load }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What is said at `now`: `w`hole, `u`pdate or nothing.
fn says(publisher: &mut Publisher, now: Instant, record: &Record) -> char {
    match publisher.next(now, &key(), MESH, record).unwrap().as_ref().map(Signed::said) {
        Some(Said::Whole(_)) => 'w',
        Some(Said::Update { .. }) => 'u',
        None => '-',
    }
}

#[test]
fn a_node_at_rest_repeats_itself_about_every_forty_five_seconds() {
    let start = clock::steady();
    for seed in 0..20 {
        let mut publisher = Publisher::new(1, seed);
        let mut spoke = Vec::new();
        for second in 0..1000 {
            match says(&mut publisher, start + ms(1000 * second), &record()) {
                'w' => spoke.push(second),
                other => assert_eq!(other, '-'),
            }
        }
        assert_eq!(spoke[0], 0);
        let gaps: Vec<u64> = spoke.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (36..=55).contains(gap)), "{gaps:?}");
        assert!(gaps.iter().any(|gap| *gap != gaps[0]), "{gaps:?}");
    }
}

#[test]
fn a_node_that_is_to_be_heard_more_often_repeats_itself_more_often() {
    let start = clock::steady();
    let mut publisher = Publisher::new(1, 0).every(ms(2000));
    let seconds = 0..60u64;
    let said = seconds.map(|second| says(&mut publisher, start + ms(1000 * second), &record()));
    let said: String = said.collect();
    assert!(!said.contains("---"), "{said}");
}

#[test]
fn a_changed_fact_is_told_whole_and_a_changed_load_alone() {
    let start = clock::steady();
    let mut publisher = Publisher::new(1, 0);
    let mut now = record();
    assert_eq!(says(&mut publisher, start, &now), 'w');
    now.load.cpu = Ratio::new(0.14);
    now.load.time_ms = 77;
    assert_eq!(says(&mut publisher, start + ms(6000), &now), '-');
    now.load.cpu = Ratio::new(0.15);
    assert_eq!(says(&mut publisher, start + ms(6000), &now), 'u');
    assert_eq!(says(&mut publisher, start + ms(12_000), &now), '-');
    now.data.push("192.0.2.1:6374".parse().unwrap());
    assert_eq!(says(&mut publisher, start + ms(12_100), &now), 'w');
}

#[test]
fn nobody_is_flooded_with_changes() {
    let start = clock::steady();
    let mut publisher = Publisher::new(1, 0);
    let mut now = record();
    let mut said = String::new();
    for step in 0..200_u64 {
        now.load.cpu = Ratio::new((step % 2) as f64);
        said.push(says(&mut publisher, start + ms(100 * step), &now));
    }
    assert_eq!(said.matches('u').count(), 3, "{said}");
    said.clear();
    for step in 200..400_u64 {
        now.name = Text::new(&step.to_string());
        said.push(says(&mut publisher, start + ms(100 * step), &now));
    }
    assert_eq!(said.matches('w').count(), 20, "{said}");
}

#[test]
fn each_kind_of_load_is_noticed() {
    let changes: [fn(&mut Load); 8] = [
        |load| load.memory_free_bytes = 449,
        |load| load.disk_free_bytes = 551,
        |load| load.gpus[0].utilisation = Some(Ratio::new(0.2)),
        |load| load.gpus[0].memory_used_mib = Some(51),
        |load| load.gpus[0].temperature_c = Some(30),
        |load| load.gpus[0].processes = Some(1),
        |load| load.gpus[0].xid = Some(79),
        |load| load.gpus[0].health = Health::LOST,
    ];
    let start = clock::steady();
    for (which, change) in changes.into_iter().enumerate() {
        let mut publisher = Publisher::new(1, 0);
        let mut now = record();
        says(&mut publisher, start, &now);
        change(&mut now.load);
        assert_eq!(says(&mut publisher, start + UPDATE_GAP, &now), 'u', "change {which}");
    }
}

#[test]
fn updates_fit_every_repetition_of_the_record_they_follow() {
    let start = clock::steady();
    let mut publisher = Publisher::new(1, 0);
    let mut now = record();
    let mut first = View::new(MESH, start);
    let mut next =
        |at: u64, now: &Record| publisher.next(start + ms(at), &key(), MESH, now).unwrap().unwrap();
    assert_eq!(first.take(start, next(0, &now).as_bytes(), |_| true), Judged::Good);
    // The view misses a repetition; the update that follows it still fits.
    next(60_000, &now);
    now.load.cpu = Ratio::new(1.0);
    let update = next(66_000, &now);
    assert_eq!(first.take(start, update.as_bytes(), |_| true), Judged::Good);
    assert_eq!(first.get(update.node(), start).unwrap().load.cpu.get(), 1.0);
    assert_eq!(first.digest()[0].stamp, update.stamp());
}

#[test]
fn a_node_that_forgot_an_earlier_life_starts_above_it() {
    let start = clock::steady();
    let mut publisher = Publisher::new(10, 0);
    let first = publisher.next(start, &key(), MESH, &record()).unwrap().unwrap();
    publisher.on_own(first.stamp());
    publisher.on_own(Stamp { incarnation: 9, sequence: 500 });
    assert_eq!(says(&mut publisher, start, &record()), '-');
    publisher.on_own(Stamp { incarnation: 40, sequence: 3 });
    let again = publisher.next(start, &key(), MESH, &record()).unwrap().unwrap();
    assert_eq!((again.stamp().incarnation, publisher.incarnation()), (41, 41));
    assert!(matches!(again.said(), Said::Whole(_)));
}
