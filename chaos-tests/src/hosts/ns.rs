//! Hosts as network namespaces.
//!
//! A [`Namespace`] is held open by a file of this process and has no name in the file system, so it is
//! gone when the last process in it is, however this process ends. A [`Lab`] has one for each host and,
//! if it is bridged, one more for the bridge. Everything is made inside them; nothing outside is touched.
//!
//! Cuts drop what comes in at the receiver: whoever sends notices nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use nix::sched::{CloneFlags, setns, unshare};

use super::tap;
use super::wire::{Link, Wire, mac};

/// The interface of every host.
const INTERFACE: &str = "eth0";
/// Hosts of a lab: numbers beyond would need another scheme of addresses.
pub const MAX_HOSTS: usize = 200;

/// A network namespace.
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// A new one, with nothing in it but a loopback interface that is down.
    pub fn new() -> anyhow::Result<Self> {
        // On a thread of its own, because the thread stays in the namespace.
        let made = std::thread::spawn(|| -> anyhow::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET).context("a network namespace could not be made")?;
            Ok(File::open("/proc/thread-self/ns/net")?)
        });
        let file = made.join().expect("the thread does not panic")?;
        Ok(Self { file })
    }

    /// Does `work` inside: sockets that it opens, interfaces that it makes and processes that it
    /// starts belong to this namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| -> anyhow::Result<T> {
                setns(&self.file, CloneFlags::CLONE_NEWNET)
                    .context("a network namespace could not be entered")?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a command inside, with `input` on its standard input.
    pub fn command(&self, words: &[&str], input: &str) -> anyhow::Result<()> {
        self.run(|| command(words, input))?
    }

    /// A path that other programs can open for as long as this exists.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

fn command(words: &[&str], input: &str) -> anyhow::Result<()> {
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} could not be started", words[0]))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}\n{input}", words.join(" "), said.trim());
    Ok(())
}

/// Hosts on one network, 198.18.0.0/16, which nobody uses elsewhere.
pub struct Lab {
    hosts: Vec<Namespace>,
    fabric: Fabric,
    faults: Mutex<Faults>,
}

enum Fabric {
    /// Holds the namespace in which the bridge is.
    Bridge {
        _middle: Namespace,
    },
    Wire(Wire),
}

#[derive(Default)]
struct Faults {
    /// Which part is lost of what a host sends another.
    lost: BTreeMap<(usize, usize), f64>,
    /// Whose UDP does not arrive at whom.
    no_udp: BTreeSet<(usize, usize)>,
    down: Vec<usize>,
}

impl Lab {
    /// Hosts on a bridge: full speed, cuts and loss.
    pub fn bridged(hosts: usize) -> anyhow::Result<Self> {
        let hosts = namespaces(hosts)?;
        let middle = Namespace::new()?;
        let mut lines = String::from("link add br0 type bridge\nlink set br0 up\n");
        for (host, namespace) in hosts.iter().enumerate() {
            let [a, b, c, d, e, f] = mac(host);
            let path = namespace.path();
            lines += &format!(
                "link add port{host} type veth peer name {INTERFACE} address \
                 {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} netns {path}\n\
                 link set port{host} master br0 up\n"
            );
        }
        middle.command(&["ip", "-batch", "-"], &lines)?;
        Self::furnish(hosts, Fabric::Bridge { _middle: middle })
    }

    /// Hosts on a wire: delay, jitter, loss and cuts. See [`Wire`].
    pub fn wired(hosts: usize, seed: u64) -> anyhow::Result<Self> {
        let hosts = namespaces(hosts)?;
        let mut taps = Vec::new();
        for (host, namespace) in hosts.iter().enumerate() {
            taps.push(namespace.run(|| tap::open(INTERFACE))?.context("no TAP device")?);
            let [a, b, c, d, e, f] = mac(host);
            let line = format!(
                "link set {INTERFACE} address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\n"
            );
            namespace.command(&["ip", "-batch", "-"], &line)?;
        }
        Self::furnish(hosts, Fabric::Wire(Wire::new(taps, seed)?))
    }

    /// Gives every host its address, and the hardware addresses of the others: a lost question for
    /// one of those would look like a second of delay.
    fn furnish(hosts: Vec<Namespace>, fabric: Fabric) -> anyhow::Result<Self> {
        let lab = Self { hosts, fabric, faults: Mutex::default() };
        for host in 0..lab.hosts.len() {
            let mut lines = format!(
                "link set lo up\n\
                 link set {INTERFACE} addrgenmode none\n\
                 address add {}/16 dev {INTERFACE}\n\
                 link set {INTERFACE} up\n",
                lab.address(host)
            );
            lines += &lab.neighbours(host);
            lab.hosts[host].command(&["ip", "-batch", "-"], &lines)?;
        }
        Ok(lab)
    }

    fn neighbours(&self, host: usize) -> String {
        let others = (0..self.hosts.len()).filter(|&other| other != host);
        let line = |other: usize| {
            let [a, b, c, d, e, f] = mac(other);
            format!(
                "neighbour replace {} lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} \
                 dev {INTERFACE} nud permanent\n",
                self.address(other)
            )
        };
        others.map(line).collect()
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The namespace of a host.
    pub fn namespace(&self, host: usize) -> &Namespace {
        &self.hosts[host]
    }

    /// The address of a host.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        let number = u8::try_from(host + 1).expect("there are fewer: checked when they were made");
        Ipv4Addr::new(198, 18, 0, number)
    }

    /// Nothing arrives between two hosts, in either direction.
    pub fn cut(&self, a: usize, b: usize) -> anyhow::Result<()> {
        self.lose(&[(a, b), (b, a)], 1.0)
    }

    /// Nothing that `from` sends arrives at `to`. The other direction stays.
    pub fn cut_from(&self, from: usize, to: usize) -> anyhow::Result<()> {
        self.lose(&[(from, to)], 1.0)
    }

    /// Nothing arrives between the hosts on one side and those on the other.
    pub fn split(&self, one: &[usize], other: &[usize]) -> anyhow::Result<()> {
        let pairs = one.iter().flat_map(|&a| other.iter().flat_map(move |&b| [(a, b), (b, a)]));
        self.lose(&pairs.collect::<Vec<_>>(), 1.0)
    }

    /// Nothing arrives at a host or from it.
    pub fn isolate(&self, host: usize) -> anyhow::Result<()> {
        let others: Vec<usize> = (0..self.hosts.len()).filter(|&other| other != host).collect();
        self.split(&[host], &others)
    }

    /// Of what `from` sends `to`, this part is lost at random, from 0 to 1.
    pub fn loss(&self, from: usize, to: usize, part: f64) -> anyhow::Result<()> {
        self.lose(&[(from, to)], part)
    }

    /// No UDP arrives between two hosts, in either direction; TCP does, as through many a firewall. Only on a bridge.
    pub fn block_udp(&self, a: usize, b: usize) -> anyhow::Result<()> {
        let bridged = matches!(self.fabric, Fabric::Bridge { .. });
        ensure!(bridged, "a wire does not look into frames: make the lab with Lab::bridged");
        let pairs = [(a, b), (b, a)];
        self.faults().no_udp.extend(pairs);
        self.apply(pairs.into_iter())
    }

    /// Takes a host's interface down: whoever sends is told that there is no way.
    pub fn link_down(&self, host: usize) -> anyhow::Result<()> {
        self.faults().down.push(host);
        self.hosts[host].command(&["ip", "link", "set", INTERFACE, "down"], "")
    }

    /// From now on frames travel so, between all hosts and in both directions. Only on a wire.
    pub fn shape(&self, link: Link) -> anyhow::Result<()> {
        for from in 0..self.hosts.len() {
            for to in (0..self.hosts.len()).filter(|&to| to != from) {
                self.shape_from(from, to, link)?;
            }
        }
        Ok(())
    }

    /// From now on frames from one host to the other travel so. Only on a wire.
    pub fn shape_from(&self, from: usize, to: usize, link: Link) -> anyhow::Result<()> {
        let Fabric::Wire(wire) = &self.fabric else {
            anyhow::bail!("a bridge has no delay: make the lab with Lab::wired");
        };
        wire.set(from, to, link);
        Ok(())
    }

    /// Undoes cuts and loss and brings interfaces up. What [`shape`](Self::shape) set stays.
    pub fn heal(&self) -> anyhow::Result<()> {
        let Faults { lost, no_udp, down } = std::mem::take(&mut *self.faults());
        self.apply(lost.keys().copied().chain(no_udp))?;
        for host in down {
            let lines = format!("link set {INTERFACE} up\n{}", self.neighbours(host));
            self.hosts[host].command(&["ip", "-batch", "-"], &lines)?;
        }
        Ok(())
    }

    fn lose(&self, pairs: &[(usize, usize)], part: f64) -> anyhow::Result<()> {
        self.faults().lost.extend(pairs.iter().map(|&pair| (pair, part)));
        self.apply(pairs.iter().copied())
    }

    /// Makes it so for these pairs.
    fn apply(&self, pairs: impl Iterator<Item = (usize, usize)>) -> anyhow::Result<()> {
        let faults = self.faults();
        let mut receivers = Vec::new();
        for (from, to) in pairs {
            let part = faults.lost.get(&(from, to)).copied().unwrap_or_default();
            match &self.fabric {
                Fabric::Bridge { .. } => receivers.push(to),
                Fabric::Wire(wire) if part == 0.0 || part == 1.0 => wire.cut(from, to, part == 1.0),
                Fabric::Wire(_) => anyhow::bail!("on a wire, loss is a part of its shape"),
            }
        }
        receivers.sort_unstable();
        receivers.dedup();
        for to in receivers {
            self.hosts[to].command(&["iptables-restore"], &self.rules(to, &faults))?;
        }
        Ok(())
    }

    /// All rules of one host at once: the change is atomic, and there is nothing to take back.
    fn rules(&self, to: usize, faults: &Faults) -> String {
        let mut rules = String::from("*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n");
        for (&(from, _), &part) in faults.lost.iter().filter(|((_, at), _)| *at == to) {
            let chance = match part {
                1.0 => String::new(),
                part => format!(" -m statistic --mode random --probability {part:.4}"),
            };
            rules += &format!("-A INPUT -s {}{chance} -j DROP\n", self.address(from));
        }
        for (from, _) in faults.no_udp.iter().filter(|(_, at)| *at == to) {
            rules += &format!("-A INPUT -p udp -s {} -j DROP\n", self.address(*from));
        }
        rules + "COMMIT\n"
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn namespaces(hosts: usize) -> anyhow::Result<Vec<Namespace>> {
    ensure!(hosts <= MAX_HOSTS, "{hosts} hosts are more than {MAX_HOSTS}");
    (0..hosts).map(|_| Namespace::new()).collect()
}
