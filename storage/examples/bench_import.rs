//! Measures import: `cargo run --release -p mesh-storage --example bench_import -- DIR [GiB] [small files]`.
//!
//! A file in the page cache is hashed by BLAKE3 on all cores as `b3sum` would (a tree of 1 MiB pieces over threads; what
//! it costs to join them is left out, which favours the other side), then imported in place, and copied. Then
//! many small files, beside `tar cf`.

#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a tool that measures")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mesh_consensus::time::Time;
use mesh_storage::import::{Options, import};
use mesh_storage::store::Store;

fn main() {
    let mut args = std::env::args().skip(1);
    let root = std::path::PathBuf::from(args.next().expect("a directory to work in"));
    let gib: f64 = args.next().map_or(1.0, |text| text.parse().unwrap());
    let small: usize = args.next().map_or(100_000, |text| text.parse().unwrap());
    let bytes = (gib * (1u64 << 30) as f64) as u64;
    fs::create_dir_all(&root).unwrap();
    let file = root.join("large");
    write_noise(&file, bytes);
    for round in 0..3 {
        let hashing = time(|| hash_all(&file, bytes));
        report(round, "blake3, all cores, read()", bytes, hashing);
        let in_place = run(&root, &file, true);
        report(round, "import in place", bytes, in_place);
        let copied = run(&root, &file, false);
        report(round, "import copied, synced", bytes, copied);
        let cp = time(|| copy(&file, &root.join("copied")));
        report(round, "cp and sync", bytes, cp);
        let _ = fs::remove_file(root.join("copied"));
        println!(
            "{round} in place / blake3: {:.2}; copied / cp: {:.2}",
            hashing / in_place,
            cp / copied
        );
    }
    let tree = root.join("tree");
    for at in 0..small {
        let path = tree.join(format!("{:03}/{at:06}", at / 1000));
        if at % 1000 == 0 {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        let mut content = vec![0; 1000 + at % 3000];
        fastrand::Rng::with_seed(at as u64).fill(&mut content);
        fs::write(path, content).unwrap();
    }
    for round in 0..3 {
        let archive = root.join("archive.tar");
        let tar = time(|| {
            let mut tar = Command::new("tar");
            assert!(
                tar.arg("cf")
                    .arg(&archive)
                    .arg("-C")
                    .arg(&tree)
                    .arg(".")
                    .status()
                    .unwrap()
                    .success()
            );
        });
        let took = run(&root, &tree, false);
        let in_place = run(&root, &tree, true);
        let rate = |seconds: f64| small as f64 / seconds;
        println!(
            "{round} {small} small files a second: tar cf {:.0}, copied {:.0}, in place {:.0}",
            rate(tar),
            rate(took),
            rate(in_place)
        );
    }
    fs::remove_dir_all(&root).unwrap();
}

fn time(act: impl FnOnce()) -> f64 {
    let start = Instant::now();
    act();
    start.elapsed().as_secs_f64()
}

fn report(round: usize, what: &str, bytes: u64, seconds: f64) {
    println!("{round} {what:28} {:.2} GB/s ({seconds:.2} s)", bytes as f64 / 1e9 / seconds);
}

fn write_noise(path: &Path, bytes: u64) {
    let file = File::create(path).unwrap();
    let mut noise = vec![0; 1 << 20];
    let mut rng = fastrand::Rng::with_seed(1);
    for at in (0..bytes).step_by(1 << 20) {
        rng.fill(&mut noise);
        file.write_all_at(&noise, at).unwrap();
    }
    file.sync_all().unwrap();
}

fn hash_all(path: &Path, bytes: u64) {
    let file = File::open(path).unwrap();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                let mut piece = vec![0; 1 << 20];
                loop {
                    let at = next.fetch_add(1 << 20, Ordering::Relaxed);
                    if at >= bytes {
                        return;
                    }
                    file.read_exact_at(&mut piece, at).unwrap();
                    std::hint::black_box(blake3::hash(&piece));
                }
            });
        }
    });
}

/// Seconds of an import into an empty store.
fn run(root: &Path, what: &Path, in_place: bool) -> f64 {
    let home = root.join("home");
    let store = Store::open(&home).unwrap();
    let options = Options { in_place, ..Options::default() };
    let seconds = time(|| drop(import(&store, what, options, Time(1)).unwrap()));
    drop(store);
    fs::remove_dir_all(&home).unwrap();
    seconds
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
    File::open(to).unwrap().sync_all().unwrap();
}
