use super::*;

/// A directory made to look like a machine.
struct Pretend(tempfile::TempDir);

impl Pretend {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.write("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  600 kB\n");
        machine.write("proc/loadavg", "1.25 0.5 0.1 1/200 4711\n");
        machine.write("proc/sys/kernel/hostname", "toaster\n");
        machine.processors(0, 0);
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn processors(&self, busy: u64, idle: u64) {
        let line = format!("{busy} 0 0 {idle} 0 0 0 0 77 0");
        self.write("proc/stat", &format!("cpu  {line}\ncpu0 {line}\ncpu1 {line}\nintr 5\n"));
    }

    fn open(&self, cpus: u32) -> Machine {
        Machine::under(self.0.path(), self.0.path(), cpus)
    }
}

#[test]
fn a_machine_without_limits_offers_all_of_itself() {
    let pretend = Pretend::new();
    let mut machine = pretend.open(2);
    let facts = machine.facts();
    assert_eq!((facts.cpus, facts.memory_bytes), (2, 1000 * 1024));
    assert_eq!(facts.hostname.as_str(), "toaster");
    let load = machine.load(clock::steady());
    assert_eq!((load.load1_milli, load.memory_free_bytes), (1250, 600 * 1024));
    assert!(facts.disk_bytes >= load.disk_free_bytes && facts.disk_bytes > 0);
}

#[test]
fn the_share_of_processors_is_that_since_the_last_look() {
    let pretend = Pretend::new();
    let mut machine = pretend.open(2);
    let now = clock::steady();
    pretend.processors(500, 500);
    assert_eq!(machine.load(now).cpu.get(), 0.0);
    pretend.processors(530, 570);
    assert_eq!(machine.load(now).cpu.get(), 0.3);
    // Nothing has passed, or the counters went back: not known rather than absurd.
    assert_eq!(machine.load(now).cpu.get(), 0.0);
    pretend.processors(1, 1);
    assert_eq!(machine.load(now).cpu.get(), 0.0);
}

#[test]
fn the_limits_of_cgroups_version_two_count_along_the_whole_path() {
    let pretend = Pretend::new();
    pretend.write("proc/self/cgroup", "0::/mesh/node\n");
    pretend.write("sys/fs/cgroup/mesh/memory.max", "409600\n");
    pretend.write("sys/fs/cgroup/mesh/memory.current", "300000\n");
    pretend.write("sys/fs/cgroup/mesh/memory.stat", "anon 1\ninactive_file 100000\n");
    pretend.write("sys/fs/cgroup/mesh/node/memory.max", "max\n");
    let mut machine = pretend.open(2);
    assert_eq!(machine.facts().memory_bytes, 409_600);
    assert_eq!(machine.load(clock::steady()).memory_free_bytes, 209_600);
    // A tighter limit further down, already exceeded.
    pretend.write("sys/fs/cgroup/mesh/node/memory.max", "8192\n");
    pretend.write("sys/fs/cgroup/mesh/node/memory.current", "9000\n");
    assert_eq!(machine.facts().memory_bytes, 8192);
    assert_eq!(machine.load(clock::steady()).memory_free_bytes, 0);
}

#[test]
fn the_limits_of_cgroups_version_one_count_too() {
    let pretend = Pretend::new();
    pretend.write("proc/self/cgroup", "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/x\n");
    // Inside a container the path above is not there; the mount is the container's own group.
    pretend.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "512000\n");
    pretend.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "112000\n");
    let mut machine = pretend.open(2);
    assert_eq!(machine.facts().memory_bytes, 512_000);
    assert_eq!(machine.load(clock::steady()).memory_free_bytes, 400_000);
    pretend.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(machine.facts().memory_bytes, 1000 * 1024);
}

#[test]
fn with_fewer_processors_than_the_machine_only_ones_own_use_counts() {
    for (file, unit) in [("cpu.stat", 1_u64), ("cpuacct/cpuacct.usage", 1000)] {
        let pretend = Pretend::new();
        let lines = if unit == 1 { "0::/../..\n" } else { "2:cpu,cpuacct:/\n" };
        pretend.write("proc/self/cgroup", lines);
        let used = |ms: u64| {
            let number = ms * 1000 * unit;
            let text =
                if unit == 1 { format!("usage_usec {number}\n") } else { number.to_string() };
            pretend.write(&format!("sys/fs/cgroup/{file}"), &text);
        };
        let mut machine = pretend.open(1);
        let now = clock::steady();
        used(5000);
        assert_eq!(machine.load(now).cpu.get(), 0.0);
        used(5250);
        let later = now + Duration::from_secs(1);
        assert_eq!(machine.load(later).cpu.get(), 0.25, "{file}");
    }
}

#[test]
fn an_empty_machine_is_not_known_rather_than_a_panic() {
    let empty = tempfile::tempdir().unwrap();
    let mut machine = Machine::under(empty.path(), &empty.path().join("missing"), 1);
    let facts = machine.facts();
    assert_eq!((facts.memory_bytes, facts.disk_bytes, facts.kernel.as_str()), (0, 0, ""));
    assert_eq!(machine.load(clock::steady()).load1_milli, 0);
}

#[test]
fn this_very_machine_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::open(dir.path());
    let facts = machine.facts();
    assert!(facts.cpus > 0 && facts.memory_bytes > 0 && facts.disk_bytes > 0);
    assert!(!facts.kernel.as_str().is_empty());
    let load = machine.load(clock::steady());
    assert!(load.memory_free_bytes > 0 && load.memory_free_bytes <= facts.memory_bytes);
}

#[test]
fn the_disk_is_measured_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    assert!(fsync_p99(dir.path(), 64).unwrap() > Duration::ZERO);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(fsync_p99(&dir.path().join("missing"), 64).is_err());
}
