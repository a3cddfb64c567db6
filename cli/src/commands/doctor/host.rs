//! This machine: directory, disk, buffers, clock, GPUs, Docker.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use super::Finding;
use crate::answers::Status;
use crate::context::Place;
use crate::view::{bytes, millis, span};

/// How many small writes are synced to learn how fast the disk is, and for how long at most.
const SYNCS: usize = 24;
const SYNCING: Duration = Duration::from_secs(3);
/// A leader waits for its disk before it answers: beyond this every write is felt.
const SLOW_SYNC: Duration = Duration::from_millis(50);
/// What quinn asks for: enough for 100 ms at 500 Mbit/s.
const UDP_BUFFER: u64 = 7_500_000;
/// Clocks may be so far apart; bookmarks, by which they are compared, come every five seconds.
const CLOCK_APART_MS: u64 = 60_000;
/// A clock further behind the mesh's than this misdates what this node would lead.
const CLOCK_BEHIND_MS: u64 = 5000;
/// 2025-01-01: a clock before that was never set.
const CLOCK_UNSET_MS: u64 = 1_735_689_600_000;

/// Files that nobody but the owner may read.
const SECRETS: [&str; 5] = ["node.key", "party.key", "sealing.key", "token", "token.auditor"];

/// Who owns the directory, and who can read its secrets.
pub(super) fn directory(place: &Place) -> Vec<Finding> {
    let dir = place.dir.display();
    let found = match fs::metadata(&place.dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return vec![Finding::ok("directory", format!("{dir} does not exist yet"))];
        }
        Err(error) => {
            let hint = "run as the user who owns it, or name another with --dir";
            return vec![Finding::wrong("directory", format!("{dir}: {error}"), hint)];
        }
    };
    let us = nix::unistd::geteuid();
    if found.uid() != us.as_raw() && !us.is_root() {
        let message = format!("{dir} belongs to user {}, and you are {us}", found.uid());
        return vec![Finding::wrong(
            "directory",
            message,
            format!("sudo -u '#{}' mesh …", found.uid()),
        )];
    }
    let open: Vec<String> = SECRETS
        .iter()
        .map(|name| place.dir.join(name))
        .filter(|path| {
            fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
        })
        .map(|path| path.display().to_string())
        .collect();
    if !open.is_empty() {
        let message = format!("others can read {}", open.join(" and "));
        return vec![Finding::wrong("directory", message, format!("chmod 600 {}", open.join(" ")))];
    }
    vec![Finding::ok("directory", format!("{dir} is yours alone to use"))]
}

/// Room and speed of the disk under the directory.
pub(super) fn disk(place: &Place, least: u64) -> Vec<Finding> {
    // Where the directory is yet to be made, its nearest parent tells.
    let Some(base) = place.dir.ancestors().find(|path| path.is_dir()) else { return Vec::new() };
    let mut findings = Vec::new();
    if let Ok(stat) = statvfs(base) {
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        findings.push(if free < least {
            let message =
                format!("{} free on {}, less than {}", bytes(free), base.display(), bytes(least));
            Finding::wrong("disk", message, "free some room, or put --dir on a larger disk")
        } else {
            Finding::ok("disk", format!("{} free on {}", bytes(free), base.display()))
        });
    }
    findings.push(match syncs(base) {
        Ok(worst) if worst > SLOW_SYNC => Finding::look(
            "sync",
            format!(
                "a small write takes up to {:.0} ms to be durable",
                worst.as_secs_f64() * 1000.0
            ),
            "put --dir on a faster disk, or keep this node from voting: --no-vote",
        ),
        Ok(worst) => Finding::ok(
            "sync",
            format!("a small write is durable within {:.1} ms", worst.as_secs_f64() * 1000.0),
        ),
        Err(error) => Finding::wrong(
            "sync",
            format!("nothing can be written to {}: {error}", base.display()),
            "check who owns it and whether it is mounted read-only",
        ),
    });
    findings
}

/// The slowest of some small durable writes.
fn syncs(base: &Path) -> io::Result<Duration> {
    struct Scrap(PathBuf);
    impl Drop for Scrap {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }
    let path = base.join(format!(".mesh-doctor-{}", std::process::id()));
    let mut file = File::options().write(true).create_new(true).open(&path)?;
    let _scrap = Scrap(path);
    let (began, mut worst) = (Instant::now(), Duration::ZERO);
    for _ in 0..SYNCS {
        let before = Instant::now();
        file.write_all(&[0xa5; 4096])?;
        file.sync_data()?;
        worst = worst.max(before.elapsed());
        if began.elapsed() > SYNCING {
            break;
        }
    }
    Ok(worst)
}

/// How much the kernel lets a UDP socket hold.
pub(super) fn buffers() -> Finding {
    let read = |name: &str| -> Option<u64> {
        fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
    };
    let (Some(receive), Some(send)) = (read("rmem_max"), read("wmem_max")) else {
        return Finding::ok("buffers", "this kernel does not say how large UDP buffers may be");
    };
    let least = receive.min(send);
    if least >= UDP_BUFFER {
        return Finding::ok("buffers", format!("UDP buffers may hold {}", bytes(least)));
    }
    Finding::look(
        "buffers",
        format!("UDP buffers hold {} at most: fast links will lose packets", bytes(least)),
        format!("sudo sysctl -w net.core.rmem_max={UDP_BUFFER} net.core.wmem_max={UDP_BUFFER}"),
    )
}

/// Whether the wall clock was set, and is not behind the mesh's.
pub(super) fn clock(status: Option<&Status>) -> Finding {
    let ahead = status.and_then(|status| status.clock_ahead_ms).unwrap_or(0);
    judge_clock(mesh_node::clock::now().0, status.and_then(|s| millis(&s.mesh_time)), ahead)
}

fn judge_clock(now: u64, mesh: Option<u64>, ahead_of_voters: i64) -> Finding {
    let hint = "let NTP set it: timedatectl set-ntp true";
    if now < CLOCK_UNSET_MS {
        return Finding::wrong("clock", "this machine's clock was never set", hint);
    }
    if ahead_of_voters.unsigned_abs() > CLOCK_APART_MS {
        let (far, way) = (ahead_of_voters.unsigned_abs(), ahead_of_voters > 0);
        let way = if way { "ahead of" } else { "behind" };
        let message = format!("this machine's clock is {} {way} most voters'", span(far));
        return Finding::wrong("clock", message, hint);
    }
    // Mesh time stands still while nothing is written, so only being behind it is telling.
    let behind = mesh.unwrap_or(0).saturating_sub(now);
    if behind > CLOCK_BEHIND_MS {
        return Finding::wrong(
            "clock",
            format!("this machine's clock is {} behind the mesh's", span(behind)),
            hint,
        );
    }
    let against = if mesh.is_some() { "not behind the mesh's" } else { "set" };
    Finding::ok("clock", format!("this machine's clock is {against}"))
}

/// Whether an NVIDIA card has its driver.
pub(super) fn gpus() -> Finding {
    let version = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let cards =
        fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten().filter(|device| {
            let says =
                |file: &str| fs::read_to_string(device.path().join(file)).unwrap_or_default();
            // NVIDIA's vendor number, and the class of displays and 3D controllers.
            says("vendor").trim() == "0x10de" && says("class").starts_with("0x03")
        });
    judge_gpus(version.as_deref(), cards.count())
}

fn judge_gpus(version: Option<&str>, cards: usize) -> Finding {
    match (version, cards) {
        (Some(version), _) => {
            let number = version
                .split_whitespace()
                .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()));
            Finding::ok(
                "gpu",
                format!("NVIDIA driver {} is loaded", number.unwrap_or("of unknown version")),
            )
        }
        (None, 0) => Finding::ok("gpu", "no NVIDIA card, no driver: this node offers its CPUs"),
        (None, n) => Finding::wrong(
            "gpu",
            format!("{} without a driver", crate::view::count(n, "NVIDIA card")),
            "install the NVIDIA driver; nvidia-smi shows when it works",
        ),
    }
}

/// Whether Docker answers.
pub(super) async fn docker() -> Finding {
    let socket = std::env::var("DOCKER_HOST")
        .ok()
        .and_then(|host| host.strip_prefix("unix://").map(PathBuf::from));
    let socket = socket.unwrap_or_else(|| "/var/run/docker.sock".into());
    let ping = async {
        let mut stream = UnixStream::connect(&socket).await?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n").await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        Ok::<_, io::Error>(answer.ends_with(b" 200"))
    };
    let shown = socket.display();
    match timeout(Duration::from_secs(3), ping).await {
        Ok(Ok(true)) => Finding::ok("docker", format!("Docker answers on {shown}")),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Finding::look(
            "docker",
            "no Docker: jobs run as plain processes",
            "install Docker if jobs come as images",
        ),
        Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Finding::look(
            "docker",
            format!("{shown} is not yours to use"),
            "sudo usermod -aG docker $USER, then log in again",
        ),
        Ok(Err(error)) => Finding::look(
            "docker",
            format!("Docker does not answer on {shown}: {error}"),
            "sudo systemctl start docker",
        ),
        Ok(Ok(false)) | Err(_) => Finding::look(
            "docker",
            format!("what listens on {shown} does not answer as Docker does"),
            "sudo systemctl restart docker",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_clock_far_from_the_others_is_wrong() {
        let now = CLOCK_UNSET_MS + 1_000_000;
        assert_eq!(judge_clock(0, None, 0).state, State::Wrong);
        assert_eq!(judge_clock(now, None, 0).state, State::Ok);
        assert_eq!(judge_clock(now, Some(now - 900_000), -9_000).state, State::Ok);
        assert_eq!(judge_clock(now, Some(now + 60_000), 0).state, State::Wrong);
        let ahead = judge_clock(now, Some(now), 86_400_000);
        assert!(ahead.state == State::Wrong && ahead.message.contains("ahead of"));
    }

    #[test]
    fn a_card_without_a_driver_is_wrong_and_no_card_is_fine() {
        assert_eq!(judge_gpus(None, 0).state, State::Ok);
        assert_eq!(judge_gpus(None, 2).state, State::Wrong);
        let said = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22";
        assert!(judge_gpus(Some(said), 2).message.contains("550.54.14"));
    }

    #[test]
    fn a_secret_that_others_can_read_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::named(dir.path().into());
        let key = dir.path().join("node.key");
        fs::write(&key, "x").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(directory(&place)[0].state, State::Wrong);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(directory(&place)[0].state, State::Ok);
    }

    #[test]
    fn the_disk_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::named(dir.path().join("not/yet/there"));
        let states: Vec<State> =
            disk(&place, u64::MAX).iter().map(|finding| finding.state).collect();
        assert_eq!(states[0], State::Wrong);
        assert_ne!(states[1], State::Wrong);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
