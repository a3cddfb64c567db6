//! What a node tells the others about itself.
//!
//! A [`Record`] says where to dial a node, what it is made of and how busy it is; a [`Load`] alone
//! follows while nothing else has changed. Both are plain data here: `signed.rs` puts them on the
//! wire, `publish.rs` decides when, `view.rs` keeps what came from others. All of it is advice:
//! nothing in a record is agreed, and its times are its author's own clock, shown and never trusted.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::bounded::{Ratio, Text, addresses, few};

pub use super::bounded::MAX_ADDRESSES;

/// The most GPUs in a record.
pub const MAX_GPUS: usize = 16;
/// The most network interfaces in a record.
pub const MAX_INTERFACES: usize = 32;

/// One node, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where its data plane can be dialled, best first.
    #[serde(with = "addresses")]
    pub data: Vec<SocketAddr>,
    /// Where its overlay can be dialled, best first.
    #[serde(with = "addresses")]
    pub overlay: Vec<SocketAddr>,
    /// What it calls itself.
    pub name: Text,
    /// The version of mesh that it runs.
    pub version: Text,
    /// What it is made of.
    pub facts: Facts,
    /// How busy it is.
    pub load: Load,
}

/// What seldom changes about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The processor, as Rust names it: `x86_64`, `aarch64`.
    pub arch: Text,
    /// `linux`, mostly.
    pub os: Text,
    /// The kernel's release.
    pub kernel: Text,
    /// What the machine calls itself.
    pub hostname: Text,
    /// How many processors this process may use.
    pub cpus: u32,
    /// How much memory this process may use.
    pub memory_bytes: u64,
    /// The size of the file system under the data directory.
    pub disk_bytes: u64,
    /// How long a small synced write to it takes at worst, measured once at start; 0 if not.
    pub fsync_p99_us: u32,
    /// Its network interfaces, without loopback and containers' own.
    #[serde(deserialize_with = "few::<_, _, MAX_INTERFACES>")]
    pub interfaces: Vec<Interface>,
    /// Its GPUs, in the driver's order.
    #[serde(deserialize_with = "few::<_, _, MAX_GPUS>")]
    pub gpus: Vec<GpuFacts>,
    /// The version of its Docker; empty if it has none that it may use.
    pub docker: Text,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Interface {
    /// Its name, as NCCL and Gloo want to hear it.
    pub name: Text,
    /// What the link can carry, in Mbit/s; 0 if the kernel does not know.
    // Four bytes, never fewer: thirty-two empty interfaces must cost their sender something, too.
    #[serde(with = "postcard::fixint::le")]
    pub speed_mbps: u32,
}

/// What seldom changes about a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuFacts {
    /// The model.
    pub name: Text,
    /// Its UUID, the name by which a task is given this GPU; zeroes if the driver does not tell.
    pub uuid: [u8; 16],
    /// How much memory it has; 0 if the driver does not tell.
    pub memory_mib: u32,
    /// If it is split by MIG: into how many instances.
    pub mig: Option<u8>,
}

impl GpuFacts {
    /// How much memory it has.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }

    /// The UUID as NVIDIA writes it, or nothing if it is not known.
    pub fn uuid_text(&self) -> Option<String> {
        if self.uuid == [0; 16] {
            return None;
        }
        let hex = data_encoding::HEXLOWER.encode(&self.uuid);
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        Some(format!("GPU-{a}-{b}-{c}-{d}-{e}"))
    }
}

/// What changes all the time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Load {
    /// When this was measured, by the author's clock, in ms since 1970. For people, not for decisions.
    pub time_ms: u64,
    /// How much of its processors was in use since the last time.
    pub cpu: Ratio,
    /// The kernel's one-minute load average, in thousandths.
    pub load1_milli: u32,
    /// Memory that could be had without hurting anyone.
    pub memory_free_bytes: u64,
    /// What the data directory's file system has left.
    pub disk_free_bytes: u64,
    /// One for each of [`Facts::gpus`], in the same order.
    #[serde(deserialize_with = "few::<_, _, MAX_GPUS>")]
    pub gpus: Vec<GpuLoad>,
}

impl Load {
    /// The kernel's one-minute load average.
    pub fn load1(&self) -> f64 {
        f64::from(self.load1_milli) / 1000.0
    }
}

/// How busy and how well a GPU is. What the driver does not tell is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuLoad {
    /// The share of time in which it computed.
    pub utilisation: Option<Ratio>,
    /// How much of its memory is in use.
    pub memory_used_mib: Option<u32>,
    /// Its temperature in °C.
    pub temperature_c: Option<u16>,
    /// What it draws, in W.
    pub power_w: Option<u16>,
    /// How many processes compute on it.
    pub processes: Option<u16>,
    /// The last error that the driver reported since this node started (NVIDIA's "XID").
    pub xid: Option<u16>,
    /// What is wrong with it.
    pub health: Health,
}

impl GpuLoad {
    /// How much of its memory is in use.
    pub fn memory_used_bytes(&self) -> Option<u64> {
        self.memory_used_mib.map(|mib| u64::from(mib) << 20)
    }
}

/// What is wrong with a GPU: a set of ailments. A later version may know more of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Health(u16);

impl Health {
    /// It returned wrong memory contents since the driver was loaded.
    pub const ECC: Self = Self(1);
    /// Bad memory waits to be replaced by spare memory, which takes a reset.
    pub const REPAIR_PENDING: Self = Self(1 << 1);
    /// There was no spare memory left for bad memory.
    pub const REPAIR_FAILED: Self = Self(1 << 2);
    /// It is slowed down because it is too hot.
    pub const HOT: Self = Self(1 << 3);
    /// It is slowed down by its power supply.
    pub const POWER: Self = Self(1 << 4);
    /// The driver reported an error that is not the fault of a program.
    pub const XID: Self = Self(1 << 5);
    /// The driver cannot reach it any more.
    pub const LOST: Self = Self(1 << 6);

    /// The driver has stopped answering: the other figures are old.
    pub const MUTE: Self = Self(1 << 7);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::ECC, "ecc"),
        (Self::REPAIR_PENDING, "repair pending"),
        (Self::REPAIR_FAILED, "repair failed"),
        (Self::HOT, "hot"),
        (Self::POWER, "power"),
        (Self::XID, "xid"),
        (Self::LOST, "lost"),
        (Self::MUTE, "driver mute"),
    ];

    /// Whether nothing is wrong.
    pub fn is_good(self) -> bool {
        self.0 == 0
    }

    /// Whether it ails in this way.
    pub fn has(self, ailment: Self) -> bool {
        self.0 & ailment.0 == ailment.0
    }

    /// Adds an ailment, if it is so.
    pub fn note(&mut self, ailment: Self, is_so: bool) {
        if is_so {
            self.0 |= ailment.0;
        }
    }

    /// In words: `good`, or what is wrong.
    pub fn words(self) -> String {
        if self.is_good() {
            return "good".into();
        }
        let known: Vec<&str> =
            Self::NAMES.iter().filter(|(ailment, _)| self.has(*ailment)).map(|(_, n)| *n).collect();
        if known.is_empty() { "unknown".into() } else { known.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_says_in_words_what_is_wrong() {
        let mut health = Health::default();
        health.note(Health::HOT, false);
        assert_eq!(health.words(), "good");
        health.note(Health::ECC, true);
        health.note(Health::HOT, true);
        assert_eq!(health.words(), "ecc, hot");
        assert_eq!(Health(1 << 15).words(), "unknown");
    }

    #[test]
    fn a_uuid_is_written_as_nvidia_writes_it() {
        let uuid = std::array::from_fn(|i| i as u8);
        let gpu = GpuFacts { uuid, ..GpuFacts::default() };
        assert_eq!(gpu.uuid_text().unwrap(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(GpuFacts::default().uuid_text(), None);
    }
}
