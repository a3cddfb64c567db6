//! A root of its own for a process: the host's programs and libraries, its own data, nobody else's.
//!
//! ```text
//! /usr /etc /dev …    as the host has them
//! /proc               shows the attempt's own processes only
//! /tmp /var/tmp       its own, on the disk
//! /dev/shm /run       its own, in memory; of the host's /run what programs need to be found and to find names
//! /work               its directory
//! /data/train …       what it was given
//! /mesh               where it meets its node
//! ```
//!
//! Where the host has a directory of the same name at the top, the attempt does not see it. All of it goes away with
//! the last process in it: mounts are made in a namespace of their own, and nothing of them is seen outside.
//!
//! The supervisor makes it for itself and for all that it starts. It stands in the attempt's own directory all the
//! while, which is no longer to be found by any path, and which it reaches through where it stands.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::pivot_root;

use super::super::launch::{Bind, Network, ROOT, Record, TMP, WORK, own_top};

const NOTHING: Option<&str> = None;
/// What of the host's `/run` is shown: without it names are not found on some hosts, and on others programs are not.
/// The rest are locks, sockets and notes of other programs.
const OF_RUN: [&str; 9] = [
    "NetworkManager",
    "booted-system",
    "connman",
    "current-system",
    "nscd",
    "nvidia-persistenced",
    "opengl-driver",
    "resolvconf",
    "systemd/resolve",
];
/// Where the old root is for a moment.
const OLD: &str = ".old";

/// Makes the root and moves into it. The calling process stands in the attempt's directory, and stays there.
pub(super) fn enter(record: &Record) -> Result<(), String> {
    let launch = &record.launch;
    let mut spaces = CloneFlags::CLONE_NEWNS;
    if launch.network == Network::None {
        spaces |= CloneFlags::CLONE_NEWNET;
    }
    unshare(spaces).map_err(failed("have namespaces of its own", Path::new("/")))?;
    if launch.network == Network::None {
        // So that it can at least talk to itself. Where there is no `ip`, it cannot.
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).stdin(Stdio::null()).status();
        drop(up);
    }
    // What the host mounts later is still seen; what is mounted here is not seen there.
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_SLAVE, NOTHING)
        .map_err(failed("part with the mounts of", Path::new("/")))?;
    let root = Path::new(ROOT);
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), root, Some("tmpfs"), plain, Some("mode=755,size=1m"))
        .map_err(failed("mount", root))?;
    let own: BTreeSet<&str> = launch
        .mounts
        .iter()
        .filter_map(Bind::own_top)
        .chain(own_top(Path::new(WORK)))
        .chain(["proc", "run", "tmp", OLD])
        .collect();
    take_over(root, &own)?;
    proc(root)?;
    run(root)?;
    let tmp = Path::new(TMP);
    bind(tmp, &directory(&root.join("tmp"))?, plain)?;
    let elsewhere = root.join("var/tmp");
    if elsewhere.is_dir() {
        bind(tmp, &elsewhere, plain)?;
    }
    let shared = root.join("dev/shm");
    if shared.is_dir() {
        let mode = "mode=1777".to_owned();
        let size = launch.limits.shm_bytes;
        let options = if size > 0 { format!("{mode},size={size}") } else { mode };
        mount(Some("tmpfs"), &shared, Some("tmpfs"), plain, Some(&*options))
            .map_err(failed("mount", &shared))?;
    }
    bind(&launch.work, &directory(&beneath(root, Path::new(WORK)))?, plain)?;
    for given in &launch.mounts {
        let place = mount_point(root, given)?;
        let flags = if given.read_only { plain | MsFlags::MS_RDONLY } else { plain };
        bind(&given.from, &place, flags)?;
    }
    let old = directory(&root.join(OLD))?;
    pivot_root(root, &old).map_err(failed("move into", root))?;
    let old = Path::new("/").join(OLD);
    umount2(&old, MntFlags::MNT_DETACH).map_err(failed("leave", &old))?;
    fs::remove_dir(&old).map_err(failed("remove", &old))
}

/// Shows what the host has at the top, but for some names.
fn take_over(root: &Path, but: &BTreeSet<&str>) -> Result<(), String> {
    let entries = fs::read_dir("/").map_err(failed("read", Path::new("/")))?;
    for entry in entries.filter_map(Result::ok) {
        let (name, from) = (entry.file_name(), entry.path());
        if name.to_str().is_some_and(|name| but.contains(name)) {
            continue;
        }
        let to = root.join(&name);
        match entry.file_type() {
            Ok(kind) if kind.is_symlink() => {
                let target = fs::read_link(&from).map_err(failed("read", &from))?;
                std::os::unix::fs::symlink(target, &to).map_err(failed("make", &to))?;
            }
            Ok(kind) if kind.is_dir() => {
                directory(&to)?;
                let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
                mount(Some(&from), &to, NOTHING, flags, NOTHING).map_err(failed("show", &from))?;
            }
            // A file at the top is nothing that a program relies on.
            _ => {}
        }
    }
    Ok(())
}

/// A view of the processes in which those of others do not appear.
fn proc(root: &Path) -> Result<(), String> {
    let to = directory(&root.join("proc"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if mount(Some("proc"), &to, Some("proc"), flags, Some("hidepid=2")).is_ok() {
        return Ok(());
    }
    // A container may not mount another one: then the host's.
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some("/proc"), &to, NOTHING, flags, NOTHING).map_err(failed("show", Path::new("/proc")))
}

/// A `/run` of its own, with a place for locks that no other attempt sees.
fn run(root: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let host = Path::new("/run");
    let to = directory(&root.join("run"))?;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), &to, Some("tmpfs"), plain, Some("mode=755,size=16m"))
        .map_err(failed("mount", &to))?;
    for name in OF_RUN {
        let from = host.join(name);
        if from.is_dir() {
            let place = directory(&to.join(name))?;
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&from), &place, NOTHING, flags, NOTHING).map_err(failed("show", &from))?;
        }
    }
    let locks = directory(&to.join("lock"))?;
    let open = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(&locks, open).map_err(failed("open", &locks))
}

/// Shows a directory or a file in another place.
fn bind(from: &Path, to: &Path, flags: MsFlags) -> Result<(), String> {
    mount(Some(from), to, NOTHING, MsFlags::MS_BIND, NOTHING).map_err(failed("mount", from))?;
    // The system takes other flags only in a second step.
    let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    mount(NOTHING, to, NOTHING, flags, NOTHING).map_err(failed("protect", to))
}

/// The place for something that was given: made beneath a top that is the attempt's own, or else there already.
fn mount_point(root: &Path, given: &Bind) -> Result<PathBuf, String> {
    let place = beneath(root, &given.to);
    if given.own_top().is_none() {
        if !place.exists() {
            return Err(format!(
                "nothing can be mounted at {}: it is not there on this host",
                given.to.display()
            ));
        }
        return Ok(place);
    }
    if given.from.is_dir() {
        return directory(&place);
    }
    if let Some(above) = place.parent() {
        directory(above)?;
    }
    File::create(&place).map_err(failed("make", &place))?;
    Ok(place)
}

fn beneath(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Makes a directory and those above it. The umask of the attempt does not concern them: they must be passable.
fn directory(path: &Path) -> Result<PathBuf, String> {
    use std::os::unix::fs::PermissionsExt;
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev() {
        fs::create_dir(path).map_err(failed("make", path))?;
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path, open).map_err(failed("open", path))?;
    }
    Ok(path.to_path_buf())
}

fn failed<E: std::fmt::Display>(
    doing: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> String + use<E> {
    let path = path.display().to_string();
    move |error| format!("the attempt's root could not {doing} {path}: {error}")
}
