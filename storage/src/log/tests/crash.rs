//! What is left when the power goes, the disk fills up or a sync fails.

use super::*;

#[test]
fn after_a_crash_anywhere_the_last_write_is_there_whole_or_not_at_all() {
    let (mut cut, mut survived) = (0, 0);
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = mem(seed);
        let mut log = create(&disk);
        let mut state = State::of(&log);
        for _ in 0..rng.u8(2..8) {
            disk.crash_after(rng.u64(1..60));
            let in_flight = loop {
                let step = Step::random(&state, &mut rng);
                match step.write(&mut log) {
                    Ok(()) => state = state.after(&step),
                    Err(_) => break state.after(&step),
                }
            };
            assert!(disk.has_crashed());
            disk.crash();
            drop(log);
            // The power may fail again while the log is being repaired.
            while rng.bool() {
                disk.crash_after(rng.u64(1..30));
                match open(&disk) {
                    Ok(again) => {
                        disk.crash();
                        drop(again);
                    }
                    Err(error) => {
                        assert!(matches!(error, OpenError::Io { .. }), "seed {seed}: {error}");
                        disk.crash();
                    }
                }
            }
            log = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {}", chain(&error)));
            let found = State::of(&log);
            cut += 1;
            if found != state {
                assert_eq!(found, in_flight, "seed {seed}");
                survived += 1;
            }
            state = found;
        }
    }
    assert!(cut > 1000 && survived > 20, "{cut} {survived}");
}

#[test]
fn what_no_sync_covered_may_be_lost_without_harm() {
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = mem(seed);
        let mut log = create(&disk);
        let mut state = State::of(&log);
        for _ in 0..10 {
            let step = Step::random(&state, &mut rng);
            step.write(&mut log).unwrap();
            state = state.after(&step);
        }
        disk.lose_unsynced();
        assert_eq!(State::of(&open(&disk).unwrap()), state);
    }
}

#[test]
fn a_crash_while_a_log_is_made_leaves_none_or_a_whole_one() {
    let genesis = snapshot(1, 1, 9000);
    let make = |disk: &MemDisk| {
        RedbLog::create(disk, NAME, identity(), Some(&genesis), LogSettings::default())
    };
    let mut effects = 0;
    for n in 1.. {
        let disk = mem(n);
        disk.crash_after(n);
        let made = make(&disk);
        let is_done = made.is_ok();
        disk.crash();
        drop(made);
        match open(&disk) {
            Ok(log) => assert_eq!(log.snapshot().unwrap().as_ref(), Some(&genesis)),
            Err(OpenError::Missing { .. }) => {
                assert!(!is_done);
                make(&disk).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        if is_done {
            break;
        }
        effects = n;
    }
    assert!(effects > 5, "{effects}");
}

#[test]
fn a_failed_sync_ends_the_log_and_nothing_acknowledged_is_lost() {
    for n in 0..20 {
        let disk = mem(n);
        let mut log = create(&disk);
        append(&mut log, 5).unwrap();
        let before = State::of(&log);
        disk.fail_next_sync();
        let error = append(&mut log, 1).unwrap_err();
        assert!(chain(&error).contains("simulated input/output error"), "{}", chain(&error));
        assert!(append(&mut log, 1).is_err());
        disk.crash();
        drop(log);
        assert_eq!(State::of(&open(&disk).unwrap()), before);
    }
}

#[test]
fn a_full_disk_ends_the_log_and_nothing_acknowledged_is_lost() {
    let disk = mem(1);
    let mut log = create(&disk);
    append(&mut log, 5).unwrap();
    let before = State::of(&log);
    disk.set_full(true);
    let error = append(&mut log, 1).unwrap_err();
    assert!(chain(&error).contains("no storage space"), "{}", chain(&error));
    disk.set_full(false);
    assert!(append(&mut log, 1).is_err());
    drop(log);
    assert_eq!(State::of(&open(&disk).unwrap()), before);
    disk.set_full(true);
    assert!(matches!(open(&disk), Err(OpenError::Io { .. })));
    disk.set_full(false);
    assert_eq!(State::of(&open(&disk).unwrap()), before);
}
