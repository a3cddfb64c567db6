//! The planted bugs do the harm that they are there for.

use super::*;

fn settings(bug: Bug) -> LogSettings {
    LogSettings { planted: Planted::bug(bug), ..LogSettings::default() }
}

#[test]
fn a_split_write_can_leave_a_log_that_contradicts_itself() {
    let mut contradictions = 0;
    for n in 1..40 {
        let disk = mem(n);
        let genesis = snapshot(1, 1, 100);
        let settings = settings(Bug::SplitWrite);
        let mut log = RedbLog::create(&disk, NAME, identity(), Some(&genesis), settings).unwrap();
        disk.crash_after(n);
        let hard_state = HardState { term: 1, vote: None, commit: 2 };
        let written =
            log.write(&Write { entries: &[entry(2, 1, 9)], hard_state, ..Write::default() });
        disk.crash();
        drop(log);
        match open(&disk) {
            Ok(log) => assert!(written.is_err() || log.last_index() == 2),
            Err(OpenError::Inconsistent { .. }) => contradictions += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(contradictions > 0);
}

#[test]
fn a_retried_sync_loses_what_was_acknowledged() {
    let disk = mem(1);
    let genesis = snapshot(1, 1, 100);
    let settings = settings(Bug::RetrySync);
    let mut log = RedbLog::create(&disk, NAME, identity(), Some(&genesis), settings).unwrap();
    append(&mut log, 5).unwrap();
    disk.fail_next_sync();
    append(&mut log, 1).unwrap();
    disk.crash();
    drop(log);
    assert_eq!(open(&disk).unwrap().last_index(), 6);
}
