//! What a log answers, and what it refuses.

use super::*;

#[test]
fn a_write_costs_one_sync() {
    let disk = mem(1);
    let mut log = create(&disk);
    append(&mut log, 30).unwrap();
    // Growing costs one more, so give it time to have grown.
    let before = disk.counters();
    for _ in 0..50 {
        append(&mut log, 1).unwrap();
    }
    let after = disk.counters();
    assert_eq!(after.syncs - before.syncs, 50);
    let bytes = (after.bytes_written - before.bytes_written) / 50;
    assert!(bytes < 40_000, "{bytes} bytes a write");
}

#[test]
fn a_newcomer_has_an_empty_log_and_takes_the_leaders_snapshot() {
    let disk = mem(1);
    let log = RedbLog::create(&disk, NAME, identity(), None, LogSettings::default()).unwrap();
    drop(log);
    let mut log = open(&disk).unwrap();
    assert_eq!((log.first_index(), log.last_index()), (1, 0));
    assert_eq!(log.term(0).unwrap(), Some(0));
    assert_eq!(log.snapshot().unwrap(), None);
    assert_eq!(log.hard_state(), HardState::default());
    let leaders = snapshot(70, 4, 50);
    let hard_state = HardState { term: 6, vote: None, commit: 70 };
    log.write(&Write { install: Some(&leaders), hard_state, ..Write::default() }).unwrap();
    assert_eq!((log.first_index(), log.last_index()), (71, 70));
    assert_eq!(log.term(70).unwrap(), Some(4));
    drop(log);
    assert_eq!(open(&disk).unwrap().snapshot().unwrap(), Some(leaders));
}

#[test]
fn a_genesis_that_is_none_is_refused() {
    let genesis = snapshot(0, 0, 10);
    let error = RedbLog::create(&mem(1), NAME, identity(), Some(&genesis), LogSettings::default());
    assert!(matches!(error.unwrap_err(), CreateError::Genesis { .. }));
}

#[test]
fn a_log_is_not_made_over_another() {
    let disk = mem(1);
    drop(create(&disk));
    let error = RedbLog::create(&disk, NAME, identity(), None, LogSettings::default());
    assert!(matches!(error.unwrap_err(), CreateError::Exists { .. }));
    assert_eq!(open(&disk).unwrap().last_index(), 1);
}

#[test]
fn reads_take_at_least_one_entry_and_no_more_than_fit() {
    let disk = mem(1);
    let mut log = create(&disk);
    // More than the tail in memory holds, so that both ways of reading are asked.
    for _ in 0..30 {
        append(&mut log, 50).unwrap();
    }
    let last = log.last_index();
    for low in [2, last - 40] {
        let one = log.entries(low, low + 20, 0).unwrap();
        assert_eq!(one, [entry(low, 1, 200)]);
        let some = log.entries(low, low + 20, 1100).unwrap();
        assert_eq!(some.len(), 5);
        assert_eq!(log.entries(low, low + 20, u64::MAX).unwrap().len(), 20);
        assert_eq!(log.entries(low, low, u64::MAX).unwrap(), []);
        assert_eq!(log.term(low).unwrap(), Some(1));
    }
    // One that starts on disk and ends in memory.
    assert_eq!(log.entries(2, last + 1, u64::MAX).unwrap().len() as u64, last - 1);
    assert!(log.entries(1, 5, 100).is_err());
    assert!(log.entries(last, last + 2, 100).is_err());
}

#[test]
fn what_cannot_follow_is_refused_and_ends_the_log() {
    let hard_state = HardState { term: 5, vote: None, commit: 11 };
    let seven = snapshot(7, 1, 1);
    let eleven = snapshot(11, 1, 1);
    let cases: [(Write<'_>, &str); 9] = [
        (Write { entries: &[entry(22, 5, 1)], ..Write::default() }, "belongs into 12 to 21"),
        (Write { entries: &[entry(11, 5, 1)], ..Write::default() }, "belongs into 12 to 21"),
        (
            Write { entries: &[entry(21, 5, 1), entry(23, 5, 1)], ..Write::default() },
            "cannot follow",
        ),
        (Write { entries: &[entry(21, 0, 1)], ..Write::default() }, "cannot follow"),
        (Write { entries: &[entry(21, 6, 1)], ..Write::default() }, "terms go back"),
        (Write { install: Some(&seven), ..Write::default() }, "would forget entry 11"),
        (Write { compact: Some((&eleven, 13)), ..Write::default() }, "the first to stay"),
        (Write { compact: Some((&snapshot(11, 2, 1), 5)), ..Write::default() }, "its entry of 1"),
        (Write { compact: Some((&snapshot(30, 2, 1), 5)), ..Write::default() }, "is not held"),
    ];
    for (write, want) in cases {
        let disk = mem(1);
        let mut log = create(&disk);
        append(&mut log, 10).unwrap();
        append(&mut log, 9).unwrap();
        log.write(&Write { entries: &[], hard_state, ..Write::default() }).unwrap();
        let before = State::of(&log);
        let error = log.write(&Write { hard_state, ..write }).unwrap_err();
        assert!(chain(&error).contains(want), "{}", chain(&error));
        let error = append(&mut log, 1).unwrap_err();
        assert!(chain(&error).contains("an earlier write failed"), "{}", chain(&error));
        drop(log);
        assert_eq!(State::of(&open(&disk).unwrap()), before);
    }
}
