//! What is done with a file that is not what a log left behind.

use super::*;

#[test]
fn a_log_that_is_held_is_not_opened_twice() {
    let dir = tempfile::tempdir().unwrap();
    let real = RealDisk::open(dir.path()).unwrap();
    for disk in [&real as &dyn Disk, &mem(1)] {
        let log = create(disk);
        let error = open(disk).unwrap_err();
        assert!(matches!(error, OpenError::Held { .. }), "{error}");
        assert_eq!(error.to_string(), "log log.redb is held by another process");
        assert_eq!(error.hint(), "stop the other node first: mesh down");
        drop(log);
        open(disk).unwrap();
    }
}

#[test]
fn a_missing_log_is_not_made_by_opening_it() {
    let disk = mem(1);
    assert!(matches!(open(&disk), Err(OpenError::Missing { .. })));
    assert!(!disk.exists(NAME).unwrap());
}

#[test]
fn a_foreign_file_is_refused_and_left_as_it_was() {
    let disk = mem(1);
    let other = redb::Database::builder();
    disk.put("other", &[]);
    let file = Backend::direct(disk.open("other").unwrap(), Planted::default());
    drop(other.create_with_backend(file).unwrap());
    let redb_file = disk.contents("other").unwrap();
    for bytes in [vec![], b"hello".to_vec(), vec![0; 9000], vec![255; 9000], redb_file] {
        disk.put(NAME, &bytes);
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
        assert_eq!(disk.contents(NAME).unwrap(), bytes);
    }
}

/// Changes a log behind its back, checksums and all.
fn tamper(disk: &MemDisk, act: impl FnOnce(&redb::WriteTransaction)) {
    let backend = Backend::direct(disk.open(NAME).unwrap(), Planted::default());
    let db = redb::Database::builder().create_with_backend(backend).unwrap();
    let txn = db.begin_write().unwrap();
    act(&txn);
    txn.commit().unwrap();
}

#[test]
fn a_newer_format_is_refused_and_left_as_it_was() {
    let disk = mem(1);
    drop(create(&disk));
    tamper(&disk, |txn| {
        let bytes = encode(FORMAT.as_bytes(), &2_u32).unwrap();
        txn.open_table(META).unwrap().insert(FORMAT, &*bytes).unwrap();
        txn.delete_table(ENTRIES).unwrap();
    });
    let before = disk.contents(NAME).unwrap();
    let error = open(&disk).unwrap_err();
    assert_eq!(error.to_string(), "log log.redb has format 2, and this version of mesh knows 1");
    assert_eq!(disk.contents(NAME).unwrap(), before);
}

#[test]
fn a_log_that_contradicts_itself_is_refused_and_left_as_it_was() {
    let put = |txn: &redb::WriteTransaction, key: u64, record: &Entry| {
        let bytes = encode(&key.to_le_bytes(), record).unwrap();
        txn.open_table(RECENT).unwrap().insert(key, &*bytes).unwrap();
    };
    let behead = |txn: &redb::WriteTransaction, change: &dyn Fn(&mut Head)| {
        let mut table = txn.open_table(RECENT).unwrap();
        let mut head: Head =
            decode(&HEAD.to_le_bytes(), table.get(HEAD).unwrap().unwrap().value()).unwrap();
        change(&mut head);
        table.insert(HEAD, &*encode(&HEAD.to_le_bytes(), &head).unwrap()).unwrap();
    };
    type Change<'a> = &'a dyn Fn(&redb::WriteTransaction);
    let cases: [(Change<'_>, &str); 8] = [
        (&|txn| put(txn, 12, &entry(12, 1, 1)), "its entries end at 12, not at 11"),
        (&|txn| put(txn, 5, &entry(5, 0, 1)), "entry 5 of term 0 follows entry 4 of term 1"),
        (&|txn| put(txn, 5, &entry(6, 1, 1)), "entry 5 is unreadable"),
        (
            &|txn| drop(txn.open_table(RECENT).unwrap().remove(5).unwrap()),
            "entry 6 of term 1 follows entry 4 of term 1",
        ),
        (&|txn| behead(txn, &|head| head.hard_state.commit = 12), "12 is said to be committed"),
        (&|txn| behead(txn, &|head| head.snapshot = None), "there is no snapshot"),
        (&|txn| behead(txn, &|head| head.seq = 1), "write 2 was acknowledged, but only 1"),
        (
            &|txn| drop(txn.open_table(META).unwrap().remove(SNAPSHOT).unwrap()),
            "the snapshot is not the one it speaks of",
        ),
    ];
    for (change, want) in cases {
        let disk = mem(1);
        let mut log = create(&disk);
        append(&mut log, 10).unwrap();
        drop(log);
        tamper(&disk, change);
        let before = disk.contents(NAME).unwrap();
        let error = open(&disk).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
        assert_eq!(disk.contents(NAME).unwrap(), before);
    }
}

/// A small log, closed properly or not, and what it holds.
fn specimen(closed: bool) -> (MemDisk, State) {
    let disk = mem(1);
    let mut log = create(&disk);
    for _ in 0..12 {
        append(&mut log, 3).unwrap();
    }
    let at = snapshot(20, 1, 3000);
    let hard_state = log.hard_state();
    log.write(&Write { compact: Some((&at, 10)), hard_state, ..Write::default() }).unwrap();
    append(&mut log, 2).unwrap();
    let state = State::of(&log);
    if closed {
        drop(log);
        return (disk, state);
    }
    // As after kill -9: the kernel still has everything.
    let fork = disk.fork(fastrand::Rng::with_seed(1));
    (fork, state)
}

/// Damage is found, or it does no harm; and what is refused is left alone.
fn judge(disk: &MemDisk, state: &State, what: &str) -> bool {
    let before = disk.contents(NAME).unwrap();
    match open(disk) {
        Ok(mut log) => {
            assert_eq!(&State::of(&log), state, "{what}");
            append(&mut log, 1).unwrap_or_else(|error| panic!("{what}: {}", chain(&error)));
            false
        }
        Err(OpenError::Damaged { .. } | OpenError::Foreign { .. }) => {
            assert!(disk.contents(NAME).unwrap() == before, "{what}: the file was changed");
            true
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn a_flipped_bit_is_found_or_does_no_harm() {
    for closed in [true, false] {
        let (disk, state) = specimen(closed);
        let bytes = disk.contents(NAME).unwrap();
        let mut rng = fastrand::Rng::with_seed(8);
        // Every byte of the header, and as many of the rest as time allows. Nobody looks at pages
        // of zeros, so they are left out.
        let mut places: Vec<usize> = (0..bytes.len())
            .filter(|at| *at < 600 || bytes[at & !4095..][..4096].iter().any(|b| *b != 0))
            .collect();
        rng.shuffle(&mut places[600..]);
        places.truncate(4000);
        let mut found = 0;
        for at in places {
            let fork = disk.fork(fastrand::Rng::with_seed(1));
            let bit = rng.u8(..8);
            assert!(fork.flip_bit(NAME, at as u64, bit));
            let what = format!("closed: {closed}, byte {at}, bit {bit}");
            found += u32::from(judge(&fork, &state, &what));
        }
        assert!(found > 500, "only {found} of 4000 were found");
    }
}

#[test]
fn a_truncated_log_is_found_or_does_no_harm() {
    for closed in [true, false] {
        let (disk, state) = specimen(closed);
        let bytes = disk.contents(NAME).unwrap();
        let mut rng = fastrand::Rng::with_seed(9);
        for i in 0..200 {
            let mut len = rng.usize(..bytes.len());
            if i % 2 == 0 {
                len &= !4095;
            }
            let fork = mem(1);
            fork.put(NAME, &bytes[..len]);
            judge(&fork, &state, &format!("closed: {closed}, cut to {len}"));
        }
    }
}

#[test]
fn a_page_from_the_past_is_found_or_does_no_harm() {
    // A disk that drops single writes and says nothing. Should it drop the first page, the note of
    // the last write goes with redb's header, and the log is as it was before that write.
    let disk = mem(1);
    let mut log = create(&disk);
    append(&mut log, 10).unwrap();
    let old = disk.contents(NAME).unwrap();
    append(&mut log, 1).unwrap();
    let state = State::of(&log);
    let new = disk.contents(NAME).unwrap();
    let mut found = 0;
    for page in 1..new.len() / 4096 {
        let range = page * 4096..(page + 1) * 4096;
        if old[range.clone()] == new[range.clone()] {
            continue;
        }
        let mut mixed = new.clone();
        mixed[range.clone()].copy_from_slice(&old[range]);
        let fork = mem(1);
        fork.put(NAME, &mixed);
        found += u32::from(judge(&fork, &state, &format!("page {page}")));
    }
    assert!(found > 2, "{found}");
}
