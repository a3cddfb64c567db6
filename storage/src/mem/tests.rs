//! The faults of a disk in memory. What all disks promise is tested in disk.rs.

use super::*;

fn disk(seed: u64) -> MemDisk {
    MemDisk::new(fastrand::Rng::with_seed(seed))
}

fn bytes(disk: &MemDisk) -> Vec<u8> {
    disk.contents("f").unwrap()
}

#[test]
fn a_crash_keeps_what_was_synced_and_any_part_of_the_rest() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let disk = disk(seed);
        let file = disk.open("f").unwrap();
        file.write_at(0, &[1; 8192]).unwrap();
        file.sync().unwrap();
        file.write_at(0, &[2; 4096]).unwrap();
        disk.crash();
        let after = bytes(&disk);
        assert!(after[4096..].iter().all(|b| *b == 1));
        let new = after.iter().filter(|b| **b == 2).count();
        assert_eq!(new % 512, 0);
        match new {
            0 => lost += 1,
            4096 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(lost > 50 && kept > 50 && torn > 10, "{lost} {kept} {torn}");
}

#[test]
fn the_same_seed_crashes_the_same_way() {
    let run = || {
        let disk = disk(7);
        let file = disk.open("f").unwrap();
        for i in 0..50_u8 {
            file.write_at(u64::from(i) * 700, &[i; 3000]).unwrap();
        }
        disk.crash();
        bytes(&disk)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_handle_from_before_the_crash_is_dead() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    disk.crash();
    assert!(is_simulated_crash(&file.write_at(0, b"x").unwrap_err()));
    assert!(is_simulated_crash(&file.sync().unwrap_err()));
    let again = disk.open("f").unwrap();
    drop(file);
    // The dead handle does not release what the new one holds.
    assert!(disk.open("f").is_err());
    drop(again);
}

#[test]
fn losing_what_is_unsynced_loses_all_of_it() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    file.write_at(0, b"old").unwrap();
    file.sync().unwrap();
    file.write_at(0, b"newer").unwrap();
    assert_eq!(bytes(&disk), b"newer");
    disk.lose_unsynced();
    assert_eq!(bytes(&disk), b"old");
}

#[test]
fn a_failed_sync_forgets_while_readers_still_see() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    file.set_len(8192).unwrap();
    file.sync().unwrap();
    file.write_at(0, b"lost").unwrap();
    disk.fail_next_sync();
    assert!(file.sync().is_err());
    file.write_at(4096, b"kept").unwrap();
    file.sync().unwrap();
    assert_eq!(&bytes(&disk)[..4], b"lost");
    disk.crash();
    assert_eq!(&bytes(&disk)[..4], b"\0\0\0\0");
    assert_eq!(&bytes(&disk)[4096..4100], b"kept");
}

#[test]
fn a_full_disk_refuses_until_there_is_room() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    disk.set_full(true);
    assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.set_len(9).unwrap_err().kind(), io::ErrorKind::StorageFull);
    disk.set_full(false);
    file.write_at(0, b"x").unwrap();
}

#[test]
fn the_power_goes_at_the_effect_that_was_asked_for() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    disk.crash_after(3);
    file.write_at(0, b"a").unwrap();
    file.sync().unwrap();
    assert!(!disk.has_crashed());
    assert!(is_simulated_crash(&file.write_at(0, b"b").unwrap_err()));
    assert!(is_simulated_crash(&disk.rename("f", "g").unwrap_err()));
    assert!(disk.has_crashed());
    disk.crash();
    assert_eq!(bytes(&disk), b"a");
    disk.rename("f", "g").unwrap();
}

#[test]
fn rot_changes_one_bit_and_says_which() {
    let disk = disk(1);
    disk.put("f", &[0; 10_000]);
    let (name, byte, bit) = disk.rot(&mut fastrand::Rng::with_seed(3)).unwrap();
    assert_eq!(name, "f");
    let mut want = vec![0; 10_000];
    want[byte as usize] = 1 << bit;
    assert_eq!(bytes(&disk), want);
    let fork = disk.fork(fastrand::Rng::with_seed(0));
    fork.crash();
    assert_eq!(bytes(&fork), want);
    disk.wipe();
    assert!(!disk.exists("f").unwrap());
    assert!(disk.rot(&mut fastrand::Rng::with_seed(3)).is_none());
    assert_eq!(bytes(&fork), want);
}
