//! What a durable append costs beside the least that any log can pay: one write and one sync.
//!
//! ```text
//! cargo run --release -q -p mesh-storage --example bench_log -- [--quick] [--json] --dir DIR
//! ```
//!
//! All contenders take turns, sample by sample, on the same file system, so that a slow minute of
//! the disk is slow for all of them.

use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mesh_consensus::id::{MeshId, NodeId, RaftId};
use mesh_consensus::log::{Config, Entry, HardState, Identity, Log, Payload, Snapshot, Write};
use mesh_consensus::time::Time;
use mesh_storage::disk::{Disk, File, RealDisk};
use mesh_storage::log::{LogSettings, RedbLog};
use mesh_storage::mem::MemDisk;

const ENTRY: usize = 256;
const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut quick = false;
    let mut json = false;
    let mut dir = std::env::temp_dir();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--json" => json = true,
            "--dir" => dir = PathBuf::from(args.next().ok_or("--dir wants a directory")?),
            other => return Err(format!("unknown argument {other:?}").into()),
        }
    }
    let n = if quick { 300 } else { 2000 };
    let root = dir.join(format!("bench-log-{}", std::process::id()));
    let measured = measure(&root, n);
    std::fs::remove_dir_all(&root)?;
    report(&measured?, n, json);
    Ok(())
}

/// Times in the order in which they were taken.
struct Measured {
    bare: Vec<Duration>,
    single: Vec<Duration>,
    batch: Vec<Duration>,
    single_bytes: u64,
    batch_bytes: u64,
    memory: Memory,
}

/// What the simulator pays.
struct Memory {
    create: Vec<Duration>,
    write: Vec<Duration>,
    crash_and_open: Vec<Duration>,
    close_and_open: Vec<Duration>,
}

fn measure(root: &Path, n: usize) -> Result<Measured, Box<dyn Error>> {
    let disk = Metered { disk: RealDisk::open(root)?, bytes: Arc::default() };
    let bare = OpenOptions::new().create_new(true).write(true).open(root.join("bare"))?;
    bare.write_all_at(&vec![0; (n + 1) * ENTRY], 0)?;
    bare.sync_all()?;
    let mut single = Appender::new(&disk, "single.redb")?;
    let mut batch = Appender::new(&disk, "batch.redb")?;
    let mut measured = Measured {
        bare: Vec::new(),
        single: Vec::new(),
        batch: Vec::new(),
        single_bytes: 0,
        batch_bytes: 0,
        memory: measure_memory(n.min(300))?,
    };
    for i in 0..n {
        measured.bare.push(timed(|| {
            bare.write_all_at(&[7; ENTRY], (i * ENTRY) as u64)?;
            Ok(bare.sync_data()?)
        })?);
        let before = disk.bytes.load(Ordering::Relaxed);
        measured.single.push(timed(|| single.append(1))?);
        let between = disk.bytes.load(Ordering::Relaxed);
        measured.batch.push(timed(|| batch.append(BATCH))?);
        measured.single_bytes += between - before;
        measured.batch_bytes += disk.bytes.load(Ordering::Relaxed) - between;
    }
    Ok(measured)
}

fn measure_memory(n: usize) -> Result<Memory, Box<dyn Error>> {
    let mut memory = Memory {
        create: Vec::new(),
        write: Vec::new(),
        crash_and_open: Vec::new(),
        close_and_open: Vec::new(),
    };
    for seed in 0..n as u64 {
        let disk = MemDisk::new(fastrand::Rng::with_seed(seed));
        let mut log = None;
        memory.create.push(timed(|| {
            log = Some(Appender::new(&disk, "log.redb")?);
            Ok(())
        })?);
        let mut log = log.ok_or("it was just made")?;
        for _ in 0..20 {
            memory.write.push(timed(|| log.append(1))?);
        }
        disk.crash();
        drop(log);
        let mut log = None;
        memory.crash_and_open.push(timed(|| {
            log = Some(RedbLog::open(&disk, "log.redb", LogSettings::default())?);
            Ok(())
        })?);
        memory.close_and_open.push(timed(|| {
            log = None;
            log = Some(RedbLog::open(&disk, "log.redb", LogSettings::default())?);
            Ok(())
        })?);
    }
    Ok(memory)
}

struct Appender {
    log: RedbLog,
}

impl Appender {
    fn new(disk: &dyn Disk, name: &str) -> Result<Self, Box<dyn Error>> {
        let identity =
            Identity { mesh: MeshId([1; 32]), epoch: 0, node: NodeId([2; 32]), raft_id: RaftId(1) };
        let genesis = Snapshot { index: 1, term: 1, config: Config::default(), data: vec![0; 512] };
        let log = RedbLog::create(disk, name, identity, Some(&genesis), LogSettings::default())?;
        Ok(Self { log })
    }

    fn append(&mut self, count: usize) -> Result<(), Box<dyn Error>> {
        let next = self.log.last_index() + 1;
        let payload = Payload::Batch { time: Time::default(), bytes: vec![7; ENTRY] };
        let entries: Vec<Entry> = (next..next + count as u64)
            .map(|index| Entry { term: 1, index, payload: payload.clone() })
            .collect();
        let hard_state = HardState { term: 1, vote: Some(RaftId(1)), commit: next - 1 };
        Ok(self.log.write(&Write { entries: &entries, hard_state, ..Write::default() })?)
    }
}

fn report(measured: &Measured, n: usize, json: bool) {
    let bare = quantile(&measured.bare, 0.5);
    let single = quantile(&measured.single, 0.5);
    let single99 = quantile(&measured.single, 0.99);
    let batch = quantile(&measured.batch, 0.5);
    let seconds = |times: &[Duration]| times.iter().sum::<Duration>().as_secs_f64();
    let entries_per_s = (n * BATCH) as f64 / seconds(&measured.batch);
    let syncs_per_s = n as f64 / seconds(&measured.bare);
    let bytes = measured.single_bytes as f64 / n as f64;
    let batch_bytes = measured.batch_bytes as f64 / (n * BATCH) as f64;
    if json {
        println!(
            "{{\"bench\":\"log\",\"goal\":\"append_p50_vs_fdatasync\",\"got\":{:.3},\"want\":0.5,\
             \"unit\":\"ratio\",\"n\":{n},\"peer\":{{\"pwrite+fdatasync_p50_ms\":{bare:.4},\
             \"append_p50_ms\":{single:.4},\"append_p99_ms\":{single99:.4}}},\"limit\":1.0}}",
            bare / single
        );
        println!(
            "{{\"bench\":\"log\",\"goal\":\"append_batch32_per_s_vs_fdatasync_rate\",\
             \"got\":{:.3},\"want\":8,\"unit\":\"ratio\",\"n\":{n},\"peer\":{{\
             \"fdatasync_per_s\":{syncs_per_s:.0},\"entries_per_s\":{entries_per_s:.0},\
             \"batch_p50_ms\":{batch:.4}}},\"limit\":{BATCH}.0}}",
            entries_per_s / syncs_per_s
        );
        println!(
            "{{\"bench\":\"log\",\"goal\":\"bytes_written_per_entry\",\"got\":{bytes:.0},\
             \"want\":null,\"unit\":\"bytes\",\"n\":{n},\"peer\":{{\
             \"in_batches_of_32\":{batch_bytes:.0}}},\"limit\":{ENTRY}.0}}"
        );
        return;
    }
    println!("{n} samples each, {ENTRY} bytes an entry, milliseconds      p50      p99");
    for (name, times) in [
        ("pwrite + fdatasync, preallocated", &measured.bare),
        ("append of 1", &measured.single),
        ("append of 32", &measured.batch),
    ] {
        println!("{name:<52} {:8.4} {:8.4}", quantile(times, 0.5), quantile(times, 0.99));
    }
    println!("append against fdatasync (goal 0.5)                  {:8.3}", bare / single);
    println!(
        "entries in 32s against fdatasyncs (goal 8)           {:8.2}",
        entries_per_s / syncs_per_s
    );
    println!("bytes written per entry, alone and in 32s            {bytes:8.0} {batch_bytes:8.0}");
    let memory = &measured.memory;
    for (name, times) in [
        ("in memory: create", &memory.create),
        ("in memory: append of 1", &memory.write),
        ("in memory: open after a crash", &memory.crash_and_open),
        ("in memory: close and open", &memory.close_and_open),
    ] {
        println!("{name:<52} {:8.4} {:8.4}", quantile(times, 0.5), quantile(times, 0.99));
    }
}

fn quantile(times: &[Duration], q: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[((sorted.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3
}

#[expect(clippy::disallowed_methods, reason = "this is a measuring tool")]
fn timed(act: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let start = std::time::Instant::now();
    act()?;
    Ok(start.elapsed())
}

/// Counts the bytes on their way to the disk.
#[derive(Debug)]
struct Metered {
    disk: RealDisk,
    bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct MeteredFile {
    file: Box<dyn File>,
    bytes: Arc<AtomicU64>,
}

impl Disk for Metered {
    fn open(&self, name: &str) -> std::io::Result<Box<dyn File>> {
        Ok(Box::new(MeteredFile { file: self.disk.open(name)?, bytes: self.bytes.clone() }))
    }
    fn exists(&self, name: &str) -> std::io::Result<bool> {
        self.disk.exists(name)
    }
    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.disk.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.disk.rename(from, to)
    }
}

impl File for MeteredFile {
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.file.write_at(offset, data)
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.file.sync()
    }
}
